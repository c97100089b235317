import type { Metadata } from "next";
import { Suspense } from "react";
import { Rows } from "@/ui/faces";
import { RunPage } from "@/rooms/networks/run-page";

export const metadata: Metadata = { title: "Run" };

export default function Page() {
  return (
    <Suspense fallback={<Rows />}>
      <RunPage />
    </Suspense>
  );
}
