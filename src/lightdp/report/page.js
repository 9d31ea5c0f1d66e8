for (const [id, spec] of Object.entries(JSON.parse(document.getElementById("specs").textContent)))
  vegaEmbed("#" + id, spec, {actions: false, renderer: "svg"});
