// VNodes in columns: each stands one column behind the last of those that it hears from.

export interface Laid {
  id: string;
  column: number;
  row: number;
}

export interface Graph {
  laid: Map<string, Laid>;
  columns: number;
  rows: number;
}

export function layGraph(ids: string[], edges: { source: string; target: string }[]): Graph {
  const known = new Set(ids);
  const sound = edges.filter((edge) => known.has(edge.source) && known.has(edge.target) && edge.source !== edge.target);
  const column = new Map(ids.map((id) => [id, 0]));
  // As many rounds as there are VNodes settle every path; a circle, which no network has, ends there, too.
  for (let round = 0; round < ids.length; round += 1) {
    let moved = false;
    for (const { source, target } of sound) {
      const least = (column.get(source) ?? 0) + 1;
      if ((column.get(target) ?? 0) < least && least < ids.length) {
        column.set(target, least);
        moved = true;
      }
    }
    if (!moved) break;
  }
  const counts: number[] = [];
  const laid = new Map<string, Laid>();
  for (const id of ids) {
    const place = column.get(id) ?? 0;
    const row = counts[place] ?? 0;
    counts[place] = row + 1;
    laid.set(id, { id, column: place, row });
  }
  return { laid, columns: counts.length, rows: Math.max(1, ...counts.map((count) => count ?? 0)) };
}
