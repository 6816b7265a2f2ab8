// The input level as moving bars.

const BARS = 56;

export class Meter {
  constructor(canvas) {
    this.canvas = canvas;
    this.bars = new Array(BARS).fill({ level: 0, speaking: false });
    this.frames = 0;
    this.level = 0;
    this.paint = this.paint.bind(this);
    new ResizeObserver(() => this.fit()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.fit());
    this.fit();
  }

  /** Called every 20 ms while there is input. */
  hear(level, speaking) {
    this.level = Math.max(this.level, level);
    if (++this.frames % 3 && level) return;
    this.bars = [...this.bars.slice(1), { level: this.level, speaking }];
    this.canvas.setAttribute("aria-valuenow", Math.round(this.level * 100));
    this.level = 0;
    requestAnimationFrame(this.paint);
  }

  still() {
    this.bars.fill({ level: 0, speaking: false });
    this.canvas.setAttribute("aria-valuenow", 0);
    requestAnimationFrame(this.paint);
  }

  fit() {
    const box = this.canvas.getBoundingClientRect(), dense = devicePixelRatio || 1;
    this.canvas.width = Math.max(1, Math.round(box.width * dense));
    this.canvas.height = Math.max(1, Math.round(box.height * dense));
    const style = getComputedStyle(this.canvas);
    this.quiet = style.getPropertyValue("--line").trim();
    this.loud = style.getPropertyValue("--accent").trim();
    this.paint();
  }

  paint() {
    const { width, height } = this.canvas, pen = this.canvas.getContext("2d"), step = width / BARS;
    pen.clearRect(0, 0, width, height);
    this.bars.forEach(({ level, speaking }, at) => {
      const tall = Math.max(step * 0.4, level * height);
      pen.fillStyle = speaking ? this.loud : this.quiet;
      pen.beginPath();
      pen.roundRect(at * step + step * 0.3, (height - tall) / 2, step * 0.4, tall, step * 0.2);
      pen.fill();
    });
  }
}
