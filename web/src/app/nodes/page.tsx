import type { Metadata } from "next";
import { Suspense } from "react";
import { Rows } from "@/ui/faces";
import { NodesPage } from "@/rooms/nodes/nodes-page";

export const metadata: Metadata = { title: "Nodes" };

export default function Page() {
  return (
    <Suspense fallback={<Rows />}>
      <NodesPage />
    </Suspense>
  );
}
