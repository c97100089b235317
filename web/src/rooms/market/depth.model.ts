// Two staircases: slots offered at a price or below rise, slices that would pay it or more fall.

interface Level {
  /** null: any. */
  price: number | null;
  count: number;
}

export function stack(offers: Level[], bids: Level[], spot: number) {
  const prices = [...offers, ...bids].flatMap((level) => (level.price === null ? [] : [level.price]));
  const [low, high] = [Math.min(spot, ...prices), Math.max(spot, ...prices)];
  const edge = Math.max((high - low) * 0.1, high * 0.05, 0.01);
  const steps = [...new Set([Math.max(0, low - edge), ...prices, high + edge])].sort((a, b) => a - b);
  const upTo = (price: number) => sum(offers.filter((level) => (level.price ?? 0) <= price));
  const from = (price: number) => sum(bids.filter((level) => (level.price ?? Infinity) >= price));
  return [
    { name: "Slots offered", colour: "var(--accent)", step: true, area: true, points: steps.map((x) => ({ x, y: upTo(x) })) },
    // A step holds until the next price: what is counted just above a price is what holds behind it.
    { name: "Slices bidding", colour: "var(--wait)", step: true, area: true, points: steps.map((x, index) => ({ x, y: from(between(x, steps[index + 1])) })) },
  ];
}

function between(x: number, next: number | undefined): number {
  return next === undefined ? x : (x + next) / 2;
}

function sum(levels: Level[]): number {
  return levels.reduce((total, level) => total + level.count, 0);
}
