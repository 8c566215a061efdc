(function () {
  "use strict";
  var LIGHT = {
    "@paper": "#ffffff", "@ink": "#1f2328", "@dim": "#6b737c", "@pale": "#cfd5db", "@grid": "#e3e7eb",
    "@prefill": "#d9730d", "@decode": "#2f6fb4", "@colocated": "#7d4fa8", "@transfer": "#2e8b57",
    "@limit": "#c0262d", "@band": "rgba(47,111,180,0.16)"
  };
  var DARK = {
    "@paper": "#14181d", "@ink": "#e6e9ec", "@dim": "#9aa4af", "@pale": "#4a545f", "@grid": "#2b323a",
    "@prefill": "#f5a04c", "@decode": "#6fb0f2", "@colocated": "#b794dd", "@transfer": "#5fc48b",
    "@limit": "#ff7b75", "@band": "rgba(111,176,242,0.22)"
  };
  var PRINTED = 680;  // pixels of a page's width, margins left out
  var NARROW = 640;  // pixels, below which a legend stands under its chart
  var dark = window.matchMedia("(prefers-color-scheme: dark)");
  var printing = false;
  var opened = [];

  function coloured(value, theme) {
    if (typeof value === "string") {
      return Object.prototype.hasOwnProperty.call(theme, value) ? theme[value] : value;
    }
    if (Array.isArray(value)) {
      return value.map(function (item) { return coloured(item, theme); });
    }
    if (value && typeof value === "object") {
      var copy = {};
      Object.keys(value).forEach(function (key) { copy[key] = coloured(value[key], theme); });
      return copy;
    }
    return value;
  }

  function layoutOf(own, theme, height, width) {
    var layout = coloured(own, theme);
    layout.height = height;
    layout.autosize = !printing;
    if (printing) { layout.width = PRINTED; }
    if (layout.legend && layout.legend.orientation === "v" && (printing || width < NARROW)) {
      layout.legend = { orientation: "h", x: 0, y: -0.25, entrywidth: 0.48, entrywidthmode: "fraction" };
      layout.height = height + 150;
    }
    layout.paper_bgcolor = "rgba(0,0,0,0)";
    layout.plot_bgcolor = "rgba(0,0,0,0)";
    layout.font = { family: "system-ui, sans-serif", size: 13, color: theme["@ink"] };
    layout.hoverlabel = { bgcolor: theme["@paper"], bordercolor: theme["@dim"], font: { color: theme["@ink"] } };
    layout.margin = Object.assign({ l: 65, r: 20, t: 20, b: 60 }, layout.margin || {});
    if (!layout.xaxis) { layout.xaxis = {}; }
    if (!layout.yaxis) { layout.yaxis = {}; }
    Object.keys(layout).forEach(function (key) {
      if (/^[xy]axis\d*$/.test(key)) {
        layout[key] = Object.assign(
          { gridcolor: theme["@grid"], linecolor: theme["@dim"], zerolinecolor: theme["@grid"], ticks: "outside",
            tickcolor: theme["@dim"] },
          layout[key]
        );
      }
    });
    return layout;
  }

  function draw() {
    var theme = dark.matches && !printing ? DARK : LIGHT;
    document.querySelectorAll(".plot").forEach(function (place) {
      var figure = JSON.parse(document.getElementById(place.id + "-data").textContent);
      Plotly.react(place, coloured(figure.data, theme), layoutOf(figure.layout, theme, figure.height, place.clientWidth), {
        responsive: !printing, displaylogo: false,
        modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"]
      });
    });
  }

  dark.addEventListener("change", draw);
  window.addEventListener("beforeprint", function () {
    printing = true;
    opened = Array.prototype.filter.call(document.querySelectorAll("details"), function (d) { return !d.open; });
    opened.forEach(function (d) { d.open = true; });
    draw();
  });
  window.addEventListener("afterprint", function () {
    printing = false;
    opened.forEach(function (d) { d.open = false; });
    draw();
  });
  draw();
})();
