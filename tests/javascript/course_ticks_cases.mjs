/* The course page's boxes without a page: which are ticked when it opens, and what a click leaves in storage. */
const LESSONS = ["1", "5a", "5b", "16a"];

class Box {
  constructor(lesson) { this.dataset = { lesson }; this.checked = false; }
  addEventListener(name, act) { this.act = act; }
  click() { this.checked = !this.checked; this.act(); }
}

function visit(keepTicks, storage, clicks) {
  const boxes = LESSONS.map((lesson) => new Box(lesson)), ticked = () => boxes.filter((one) => one.checked).map((one) => one.dataset.lesson);
  keepTicks(boxes, () => { if (storage === null) throw new Error("refused"); return storage; });
  const opened = ticked();
  for (const lesson of clicks) boxes.find((one) => one.dataset.lesson === lesson).click();
  return [opened, ticked()];
}

/* stored: the text in storage, absent for none, null for a browser that refuses; visits: the lessons clicked in each. */
export function answer({ keepTicks }, tables, cases) {
  return cases.map(({ stored, visits }) => {
    let text = stored ?? null;
    const storage = stored === null ? null : { getItem: () => text, setItem: (key, value) => { text = value; } };
    return visits.map((clicks) => visit(keepTicks, storage, clicks));
  });
}
