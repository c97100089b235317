import type { Metadata } from "next";
import { Suspense } from "react";
import { Rows } from "@/ui/faces";
import { NetworksPage } from "@/rooms/networks/networks-page";

export const metadata: Metadata = { title: "Networks" };

export default function Page() {
  return (
    <Suspense fallback={<Rows />}>
      <NetworksPage />
    </Suspense>
  );
}
