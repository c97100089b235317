// Where each slice's cell stands: large cells while there is room, then rows of small ones, never more than fit.

export interface StripLayout {
  columns: number;
  cell: number;
  row: number;
  gap: number;
  height: number;
  count: number;
}

const HEIGHT_MAX = 160;
const CELL_MAX = 22;

export function layStrip(count: number, width: number): StripLayout {
  const usable = Math.max(1, width);
  for (const size of [CELL_MAX, 16, 12, 9, 7, 5, 4, 3, 2]) {
    const columns = Math.max(1, Math.floor(usable / size));
    const rows = Math.ceil(count / columns);
    if (rows * size <= HEIGHT_MAX || size === 2) {
      const fitted = Math.min(HEIGHT_MAX, rows * size);
      return { columns, cell: size, row: fitted / rows, gap: size >= 5 ? 2 : size >= 3 ? 1 : 0, height: Math.max(size, fitted), count };
    }
  }
  throw new Error("unreachable: the last size always fits");
}

export function sliceAt(layout: StripLayout, x: number, y: number): number {
  const column = Math.max(0, Math.min(layout.columns - 1, Math.floor(x / layout.cell)));
  const row = Math.max(0, Math.floor(y / layout.row));
  return Math.max(0, Math.min(layout.count - 1, row * layout.columns + column));
}
