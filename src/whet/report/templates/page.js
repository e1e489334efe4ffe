// Shows the values under the pointer in the heading of a chart; without it the page lacks nothing but this.
for (const figure of document.querySelectorAll(".chart")) {
  const data = JSON.parse(figure.dataset.curves);
  const svg = figure.querySelector("svg"), cursor = figure.querySelector(".cursor");
  const at = figure.querySelector(".at"), readings = [...figure.querySelectorAll(".reading")];
  const nearest = (steps, step) => {
    let low = 0, high = steps.length - 1;
    while (high - low > 1) {
      const middle = (low + high) >> 1;
      if (steps[middle] < step) low = middle; else high = middle;
    }
    return Math.abs(steps[low] - step) <= Math.abs(steps[high] - step) ? low : high;
  };
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const share = ((event.clientX - box.left) / box.width - data.left) / (data.right - data.left);
    const wanted = data.first + Math.min(1, Math.max(0, share)) * (data.last - data.first);
    const main = data.curves[0].steps, step = main[nearest(main, wanted)];
    const place = data.left + (data.right - data.left) * (step - data.first) / (data.last - data.first);
    cursor.setAttribute("x1", place * data.width);
    cursor.setAttribute("x2", place * data.width);
    at.textContent = `step ${step.toLocaleString("en")}`;
    data.curves.forEach((curve, i) => { readings[i].textContent = curve.shown[nearest(curve.steps, step)]; });
  });
  svg.addEventListener("pointerleave", () => {
    cursor.setAttribute("x1", -9);
    cursor.setAttribute("x2", -9);
    at.textContent = "";
    for (const reading of readings) reading.textContent = reading.dataset.latest;
  });
}
