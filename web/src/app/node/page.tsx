import type { Metadata } from "next";
import { Suspense } from "react";
import { Rows } from "@/ui/faces";
import { NodePage } from "@/rooms/nodes/node-page";

export const metadata: Metadata = { title: "Node" };

export default function Page() {
  return (
    <Suspense fallback={<Rows />}>
      <NodePage />
    </Suspense>
  );
}
