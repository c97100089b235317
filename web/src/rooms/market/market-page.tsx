"use client";
// What an hour costs, what it did before, who offers and who bids, and what a machine would earn. Open to everyone.

import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { getDepth, getEarnings, getRateCard, getSpotHistory, getSpots, type Spot } from "@/lib/api/gateway";
import { toPlot } from "@/lib/money";
import { countOf, showCount, showDuration, showFactor, showRegion, showShare, showTier } from "@/lib/words";
import { LineChart } from "@/ui/charts";
import { Ask, Block, Empty } from "@/ui/faces";
import { Amount, Badge, Card, Choice, Field, LinkButton, Page, Price, Stat, Tier } from "@/ui/parts";
import { useAccount, usePoll } from "@/ui/providers";
import { Table } from "@/ui/table";
import { stack } from "./depth.model";

const SPANS = ["1", "24", "168"] as const;
const SPAN_NAMES = { "1": "Hour", "24": "Day", "168": "Week" };

export function MarketPage() {
  const poll = usePoll();
  const spots = useQuery({ queryKey: ["market", "spot"], queryFn: getSpots, refetchInterval: poll || 15_000 });
  return (
    <Page title="Market" lead="Spot follows supply and demand, in public. A job pays spot, never above its ceiling and never below an owner's floor.">
      <Ask query={spots} loading={<Block className="h-[54rem]" />} isEmpty={(page) => !page.spots.length} empty={<Card className="grid min-h-[54rem] place-items-center"><Empty title="No prices yet">The market sets them with its first tick after nodes have come.</Empty></Card>}>
        {(page) => <Buckets spots={page.spots} />}
      </Ask>
      <div className="mt-6 grid gap-6">
        <EarningsCard />
        <RateCardCard />
      </div>
    </Page>
  );
}

const nameOf = (spot: Spot) => `${spot.tier} ${spot.region}`;

function Buckets({ spots }: { spots: Spot[] }) {
  const [chosen, setChosen] = useState<string | null>(null);
  const spot = spots.find((each) => nameOf(each) === chosen) ?? spots[0];
  if (!spot) return null;
  return (
    <div className="grid items-start gap-6 xl:grid-cols-[minmax(0,30rem)_minmax(0,1fr)]">
      <Card title="Spot now" flush>
        <Table
          label="Spot prices"
          rows={spots}
          keyOf={nameOf}
          columns={[
            {
              name: "Tier",
              cell: (each) => (
                <button type="button" aria-pressed={each === spot} onClick={() => setChosen(nameOf(each))} className={`after:absolute after:inset-0 ${each === spot ? "font-semibold" : ""}`}>
                  <Tier tier={each.tier} />
                </button>
              ),
            },
            { name: "Region", cell: (each) => showRegion(each.region) },
            { name: "Busy", right: true, wide: true, cell: (each) => `${each.busy_count} / ${each.slot_count}` },
            { name: "Surge", right: true, wide: true, cell: (each) => showFactor(each.surge_ppm) },
            { name: "Spot", right: true, cell: (each) => <Price of={each.spot_microcredits_per_hour} /> },
          ]}
        />
      </Card>
      <div className="grid gap-6">
        <History spot={spot} />
        <DepthCard spot={spot} />
      </div>
    </div>
  );
}

function History({ spot }: { spot: Spot }) {
  const [span, setSpan] = useState<(typeof SPANS)[number]>("24");
  const history = useQuery({
    queryKey: ["market", "history", spot.tier, spot.region, span],
    queryFn: () => getSpotHistory(spot.tier, spot.region, Number(span)),
    placeholderData: keepPreviousData,
    refetchInterval: 60_000,
  });
  return (
    <Card title={`${showTier(spot.tier)}, ${showRegion(spot.region)}`} className="min-h-[25rem]" action={<Choice label="Span" value={span} options={SPANS} onChange={setSpan} show={(each) => SPAN_NAMES[each]} />}>
      <dl className="mb-4 grid grid-cols-2 gap-4 sm:grid-cols-4">
        <Stat name="Spot" value={<Price of={spot.spot_microcredits_per_hour} />} />
        <Stat name="By the rate card" value={<Price of={spot.reference_microcredits_per_hour} />} />
        <Stat name="Slots busy" value={`${spot.busy_count} of ${spot.slot_count}`} />
        <Stat name="Slices waiting" value={showCount(spot.waiting_count)} note={spot.contested ? <Badge tone="wait">contested</Badge> : null} />
      </dl>
      <Ask query={history} loading={<Block className="h-[264px]" />} isEmpty={(found) => found.points.length < 2} empty={<Empty title="Not enough history yet">A point is added with every tick of the market.</Empty>}>
        {(found) => (
          <LineChart
            label={`Spot price of ${showTier(spot.tier)} in ${showRegion(spot.region)}, credits per hour`}
            from={0}
            series={[
              { name: "Spot", colour: "var(--accent)", step: true, area: true, points: found.points.map((point) => ({ x: point.at.getTime(), y: toPlot(point.spot_microcredits_per_hour) })) },
              { name: "Rate card", colour: "var(--idle)", step: true, points: found.points.map((point) => ({ x: point.at.getTime(), y: toPlot(point.reference_microcredits_per_hour) })) },
            ]}
            showX={(x) => showMoment(x, span)}
            showY={(y) => y.toFixed(2)}
          />
        )}
      </Ask>
    </Card>
  );
}

function showMoment(x: number, span: string): string {
  const at = new Date(x);
  return span === "168" ? at.toLocaleDateString(undefined, { weekday: "short", day: "numeric" }) : at.toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit" });
}

function DepthCard({ spot }: { spot: Spot }) {
  const depth = useQuery({ queryKey: ["market", "depth", spot.tier, spot.region], queryFn: () => getDepth(spot.tier, spot.region), placeholderData: keepPreviousData, refetchInterval: 15_000 });
  return (
    <Card title="Depth" note="slots offered at a price or below, slices that would pay it or more" className="min-h-80">
      <Ask query={depth} loading={<Block className="h-[224px]" />} isEmpty={(found) => !found.asks.length && !found.bids.length} empty={<Empty title="Nothing is offered or asked for" />}>
        {(found) => (
          <LineChart
            label="Depth of offers and bids by price"
            height={200}
            from={0}
            whole
            series={stack(
              found.asks.map(toLevel),
              found.bids.map(toLevel),
              toPlot(spot.spot_microcredits_per_hour),
            )}
            marks={[{ x: toPlot(spot.spot_microcredits_per_hour), label: "Spot", colour: "var(--soft)" }]}
            showX={(x) => `${x.toFixed(1)} cr/h`}
            showY={(y) => showCount(Math.round(y))}
          />
        )}
      </Ask>
    </Card>
  );
}

function toLevel(step: { price_microcredits_per_hour: bigint | null; count: number }) {
  return { price: step.price_microcredits_per_hour === null ? null : toPlot(step.price_microcredits_per_hour), count: step.count };
}

function EarningsCard() {
  const [country, setCountry] = useState("");
  const [chosen, setChosen] = useState("");
  const card = useQuery({ queryKey: ["market", "rate-card"], queryFn: getRateCard, staleTime: 300_000 });
  const tier = chosen || (Object.keys(card.data?.tiers_ppm ?? {})[0] ?? "");
  const asked = { tier: tier || undefined, country: /^[a-z]{2}$/i.test(country) ? country.toUpperCase() : undefined };
  const account = useAccount();
  const earnings = useQuery({ queryKey: ["market", "earnings", asked], queryFn: () => getEarnings(asked), enabled: Boolean(account && tier), placeholderData: keepPreviousData });
  return (
    <Card title="What a machine would earn" note="from the last day, and no promise" className="min-h-72">
      <div className="mb-4 grid max-w-xl gap-4 sm:grid-cols-2">
        <Field label="Card">
          {(props) => (
            <select {...props} value={tier} onChange={(event) => setChosen(event.target.value)}>
              {Object.keys(card.data?.tiers_ppm ?? {}).map((each) => (
                <option key={each} value={each}>
                  {showTier(each)}
                </option>
              ))}
            </select>
          )}
        </Field>
        <Field label="Country" hint="Two letters, such as IN">{(props) => <input {...props} maxLength={2} value={country} onChange={(event) => setCountry(event.target.value)} />}</Field>
      </div>
      {account === null ? (
        <p className="flex flex-wrap items-center gap-3 text-soft">
          An estimate is for people with an account. <LinkButton href="/sign-in/">Sign in</LinkButton>
        </p>
      ) : (
      <Ask query={earnings} isEmpty={(found) => !found.tiers.length} empty={<Empty title="No figures" />}>
        {(found) => (
          <div className="grid grid-cols-[minmax(0,1fr)] gap-6 xl:grid-cols-2">
            <div className="-mx-4 sm:-mx-5 xl:mr-0">
              <Table
                label="Earnings at full use"
                rows={found.tiers}
                keyOf={(each) => each.tier}
                columns={[
                  { name: "At full use", cell: (each) => <Tier tier={each.tier} /> },
                  { name: "A job pays", right: true, wide: true, cell: (each) => <Price of={each.price_microcredits_per_hour} /> },
                  { name: "You earn", right: true, cell: (each) => <Price of={each.owner_microcredits_per_hour} /> },
                ]}
              />
            </div>
            {found.buckets.length ? (
              <div className="-mx-4 sm:-mx-5 xl:ml-0">
                <Table
                  label="Earnings as the market stands"
                  rows={found.buckets}
                  keyOf={(each) => `${each.tier} ${each.region}`}
                  columns={[
                    { name: "As it stands", cell: (each) => <Tier tier={each.tier} /> },
                    { name: "Busy", right: true, cell: (each) => showShare(each.busy_ppm) },
                    { name: "A job takes", right: true, wide: true, cell: (each) => showDuration(each.seconds_per_job) },
                    { name: "Best floor", right: true, wide: true, cell: (each) => <Price of={each.best.floor_microcredits_per_hour} /> },
                    { name: "You earn", right: true, cell: (each) => <Price of={each.best.owner_microcredits_per_hour} /> },
                  ]}
                />
              </div>
            ) : null}
          </div>
        )}
      </Ask>
      )}
    </Card>
  );
}

function RateCardCard() {
  const card = useQuery({ queryKey: ["market", "rate-card"], queryFn: getRateCard, staleTime: 300_000 });
  return (
    <Card title="Rate card" note="reference = base × tier × region">
      <Ask query={card}>
        {(found) => (
          <div className="grid gap-6 lg:grid-cols-3">
            <div>
              <dl className="grid grid-cols-2 gap-4 lg:grid-cols-1">
                <Stat name="Base" value={<Price of={found.base_microcredits_per_hour} />} />
                <Stat name="Fee" value={showShare(found.fee_ppm)} note="of what a job pays; the owner gets the rest" />
                <Stat name="Version" value={<span className="text-base">{found.version.slice(0, 12)}</span>} />
              </dl>
            </div>
            <ul className="grid content-start gap-1">
              {Object.entries(found.tiers_ppm).map(([tier, ppm]) => (
                <li key={tier} className="figure flex justify-between gap-4">
                  <Tier tier={tier} />
                  {showFactor(ppm)}
                </li>
              ))}
            </ul>
            <ul className="grid content-start gap-1">
              {Object.entries(found.regions).map(([region, terms]) => (
                <li key={region} className="figure flex justify-between gap-4">
                  <span>
                    {showRegion(region)} <span className="text-sm text-soft">{terms.countries.length ? countOf(terms.countries.length, "country", "countries") : "all others"}, cash out from <Amount of={terms.cash_out_min_microcredits} /></span>
                  </span>
                  {showFactor(terms.multiplier_ppm)}
                </li>
              ))}
            </ul>
          </div>
        )}
      </Ask>
    </Card>
  );
}
