// The course page's boxes: which lessons are done, kept in this browser only.
const KEY = "minllm lessons done";

// Ticks the boxes of the lessons in storage, and stores each change. open: returns the storage, and may refuse.
export function keepTicks(boxes, open) {
  for (const box of boxes) {
    box.checked = stored(open).includes(box.dataset.lesson);
    box.addEventListener("change", () => {
      const ticked = boxes.filter((one) => one.checked).map((one) => one.dataset.lesson);
      try { open().setItem(KEY, JSON.stringify(ticked)); } catch { /* the ticks last until the page closes */ }
    });
  }
}

// The lessons in storage; none if nothing is stored, something else is, or storage is refused.
function stored(open) {
  try {
    const found = JSON.parse(open().getItem(KEY));
    return Array.isArray(found) ? found : [];
  } catch { return []; }
}

if (typeof document !== "undefined") keepTicks([...document.querySelectorAll("input[data-lesson]")], () => localStorage);
