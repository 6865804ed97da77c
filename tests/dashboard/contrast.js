// Texts that are hard to read: less than 4.5 to 1, or 3 to 1 where they are large (WCAG 2, AA).

const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });

/** Any colour that CSS can say, over the colour below it, as [red, green, blue]. */
const over = (colour, below) => {
  canvas.globalCompositeOperation = "source-over";
  canvas.fillStyle = `rgb(${below.join(",")})`;
  canvas.fillRect(0, 0, 1, 1);
  canvas.fillStyle = colour;
  canvas.fillRect(0, 0, 1, 1);
  return [...canvas.getImageData(0, 0, 1, 1).data.slice(0, 3)];
};

const ground = (node) => {
  if (node === null) return [255, 255, 255];
  return over(getComputedStyle(node).backgroundColor, node.matches("dialog") ? [0, 0, 0] : ground(node.parentElement));
};

const light = (colour) => {
  const [r, g, b] = colour.map((part) => (part / 255 <= 0.04045 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};

const found = [];
const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (texts.nextNode()) {
  const node = texts.currentNode.parentElement;
  const isShown = texts.currentNode.data.trim() !== "" && node.checkVisibility({ opacityProperty: true });
  if (!isShown || node.closest(":disabled, .quiet, .skip, svg, script, noscript, textarea")) continue;
  if (document.querySelector("dialog[open]") && node.closest("dialog, .toasts") === null) continue;
  const style = getComputedStyle(node);
  const below = ground(node);
  const [one, other] = [light(over(style.color, below)), light(below)];
  const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
  const size = parseFloat(style.fontSize);
  const isLarge = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
  if (ratio < (isLarge ? 3 : 4.5)) found.push(`${ratio.toFixed(2)} ${node.className}: ${texts.currentNode.data.slice(0, 40)}`);
}
return [...new Set(found)].slice(0, 10);
