import type { Metadata } from "next";
import { Suspense } from "react";
import { Rows } from "@/ui/faces";
import { MarketPage } from "@/rooms/market/market-page";

export const metadata: Metadata = { title: "Market" };

export default function Page() {
  return (
    <Suspense fallback={<Rows />}>
      <MarketPage />
    </Suspense>
  );
}
