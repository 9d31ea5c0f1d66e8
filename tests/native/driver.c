/* The kernel's inner loops without Python, for processors that only an emulator has: requests come in, results go out.
 *
 * A request is a Request and its buffers; the answer is an int64_t and the buffer that was written. The first answer lists what this
 * processor can run. tests/native/test_native_processors.py is on the other side.
 */
#include "rotation.h"
#include "packing.h"
#include "noise.h"
#include "sha256.h"
#include "tree.h"

#include <fenv.h>
#include <stdio.h>

enum { ACCUMULATE, PACK, UNPACK, ROTATE, EXPAND, PLANT, FOLD, PRUNE_ONE, DRAW };

typedef struct {
    int64_t what, size[4], start, part, back, shift, bits, upward;
    double step, scale, most, bound;
    char path[16];
} Request;

static void *buffer[4];

/* a buffer that is aligned as a vector's elements are, and no better */
static void *received(int64_t size)
{
    char *memory = malloc((size_t)size + 128);
    memory += 72 - (uintptr_t)memory % 64;
    if (fread(memory, 1, (size_t)size, stdin) != (size_t)size) exit(1);
    return memory;
}

static int64_t answer(const Request *r)
{
    const size_t *size = (const size_t *)r->size;
    if (r->what == ACCUMULATE) {
        const Data data = {size[3] ? buffer[3] : NULL, size[3] > size[0], r->step};
        if (!supports(r->path)) return -2;
        return accumulated(r->path, buffer[0], size[0] / 4, (uint64_t)r->start, buffer[1], buffer[2], size[1] / 32, data);
    }
    if (r->what == DRAW) {
        if (!supports(r->path)) return -2;
        return drawn(r->path, buffer[0], size[0] / 4, (uint64_t)r->start, buffer[1], buffer[2], size[1] / 32, (uint32_t)r->part);
    }
    if (r->what == EXPAND) {
        if (!compressing(r->path) || size[1] > PREFIX_MAX || size[0] * RECORD != size[2] * SHA_BYTES) return -2;
        return expanded(buffer[0], buffer[1], size[1], buffer[2], size[2] / RECORD, compressing(r->path)), 1;
    }
    if (r->what == PLANT) {
        const size_t count = count_enrolments(buffer[1], size[1]);
        return count && size[0] == size[1] + 4 * count - 3 ? planted(buffer[0], buffer[1], size[1], count) : 0;
    }
    if (r->what == FOLD || r->what == PRUNE_ONE) {     /* all columns, one after the other; or the tree that shows the place in buffer 2 */
        const int fold = r->what == FOLD;
        const size_t n = count_nodes(buffer[1], size[1]);
        uint8_t *at = fold ? buffer[0] : malloc(50 * n + 1);
        const Nodes nodes = {at, at + 8 * n, at + 12 * n, at + 14 * n, at + 18 * n};
        if (!n || !compressing(r->path) || (fold && size[0] != 50 * n)) return 0;
        const int fits = folded(&nodes, buffer[1], size[1], n, compressing(r->path));
        return fold ? fits : pruned(NULL, &nodes, n, buffer[1], size[1], buffer[2], 1) == size[0]
                                 && pruned(buffer[0], &nodes, n, buffer[1], size[1], buffer[2], 1) == size[0];
    }
    if (r->what == ROTATE) {
        Turn t = {.out = buffer[0], .values = r->back ? buffer[0] : buffer[1], .back = (int)r->back, .signs = buffer[2],
                  .part = (size_t)r->part, .scale = r->scale, .most = r->most, .bound = r->bound};
        if (!turning(r->path) || !turns(&t, size[0], r->back ? size[0] : size[1], size[2])) return -2;
        return turn(&t, size[0] / 8, turning(r->path)) == 0;
    } else {
        Packing p = {.values = buffer[r->what == PACK], .words = buffer[r->what != PACK], .shift = (int)r->shift, .bits = (int)r->bits};
        if (!packs(&p, size[r->what == PACK], size[r->what != PACK])) return -2;
        each_row(p, r->what == PACK);
        return 1;
    }
}

int main(void)
{
    Request r;
    for (int i = 0; PATHS[i].name; i++) printf("%s%s", supports(PATHS[i].name) ? PATHS[i].name : "", " ");
    printf("/");
    for (int i = 0; WAYS[i]; i++) printf(" %s", turning(WAYS[i]) ? WAYS[i] : "");
    printf("\n");
    while (fread(&r, sizeof(r), 1, stdin) == 1) {
        int64_t result;
        for (int i = 0; i < 4; i++) buffer[i] = received(r.size[i]);
        if (r.upward) fesetround(FE_UPWARD);
        result = answer(&r);
        if (r.upward && fegetround() != FE_UPWARD) result = -3;
        fesetround(FE_TONEAREST);
        fwrite(&result, sizeof(result), 1, stdout);
        fwrite(buffer[0], 1, (size_t)r.size[0], stdout);
    }
    return 0;
}
