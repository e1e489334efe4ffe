// Numbers as a reader wants them, as whet.number_format writes them.
"use strict";

function number(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e-3 && size < 1e5) {
    const digits = Math.max(0, 2 - Math.floor(Math.log10(size)));
    return value.toLocaleString("en", { maximumFractionDigits: Math.min(20, digits) }).replace("-", "−");
  }
  const [mantissa, exponent] = value.toExponential(1).split("e");
  return `${mantissa.replace(/\.0$/, "")}e${Number(exponent)}`.replaceAll("-", "−");
}

function signed(value) {
  return value > 0 ? `+${number(value)}` : number(value);
}

function percent(share) {
  const whole = (100 * share).toFixed(0);
  if ((whole === "0" && share !== 0) || (whole === "100" && share !== 1)) {
    return share < 0.0005 ? "< 0.1 %" : share > 0.9995 ? "> 99.9 %" : `${(100 * share).toFixed(1)} %`;
  }
  return `${whole} %`;
}

function count(value) {
  return value.toLocaleString("en");
}

function plural(value, noun) {
  return `${count(value)} ${noun}${value === 1 ? "" : "s"}`;
}

function duration(seconds) {
  const whole = Math.round(seconds);
  if (whole < 60) return `${number(seconds)} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  return `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
}

// Labels of round numbers: where few digits do not tell them apart, as differences from one of them.
function levelTexts(levels) {
  const plain = levels.map(number);
  if (new Set(plain).size === plain.length) return plain;
  const base = Number(levels.at(-1).toPrecision(3));
  return levels.map((level) => (Math.abs(level - base) < 1e-9 * Math.abs(base) ? number(base) : signed(level - base)));
}

// The value of a measure: a share in percent.
function measured(headline, value) {
  return headline.is_share ? percent(value) : number(value);
}

// Round numbers in [low, high], at most `most` strides apart.
function ticks(low, high, most = 5) {
  const rough = (high - low) / most;
  if (!(rough > 0)) return [low];
  const power = 10 ** Math.floor(Math.log10(rough));
  const stride = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((one) => one >= rough * (1 - 1e-9));
  const found = [];
  for (let i = Math.ceil(low / stride - 1e-9); i <= Math.floor(high / stride + 1e-9); i += 1) found.push(stride * i + 0);  // + 0: no −0
  return found;
}

// Centred moving average, truncated at the ends.
function smooth(values, window) {
  if (window <= 1) return values;
  const sums = [0];
  for (const value of values) sums.push(sums.at(-1) + value);
  const half = Math.floor(window / 2);
  return values.map((_, i) => {
    const start = Math.max(0, i - half), stop = Math.min(values.length, i + half + 1);
    return (sums[stop] - sums[start]) / (stop - start);
  });
}

function smoothingWindow(length) {
  return length < 20 ? 1 : 2 * Math.floor(length / 30) + 3;
}
