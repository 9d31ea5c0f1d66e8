import time, numpy as np
from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
app = ServerApp()
@app.main()
def main(grid, context):
    T=[time.time()]
    def ev(r, a):
        T.append(time.time()); print("ROUND", r, T[-1]-T[-2], flush=True)
        open(context.run_config["folder"]+"/ev","a").write(f"{r} {T[-1]-T[-2]}\n")
    FedAvg(fraction_evaluate=0.0,min_available_nodes=5,min_train_nodes=5).start(grid, ArrayRecord([np.zeros(650)]), num_rounds=int(context.run_config["rounds"]), timeout=20, evaluate_fn=ev)
    open(context.run_config["folder"]+"/ev","a").write("done\n")
