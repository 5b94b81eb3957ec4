// The course page's boxes: which lessons are done, kept in this browser only.
const KEY = "minllm lessons done";

const boxes = [...document.querySelectorAll("input[data-lesson]")];
let done = [];
try { done = JSON.parse(localStorage.getItem(KEY)) ?? []; } catch { /* nothing is stored, or storage is refused */ }

for (const box of boxes) {
  box.checked = done.includes(box.dataset.lesson);
  box.addEventListener("change", () => {
    const ticked = boxes.filter((one) => one.checked).map((one) => one.dataset.lesson);
    try { localStorage.setItem(KEY, JSON.stringify(ticked)); } catch { /* the ticks last until the page closes */ }
  });
}
