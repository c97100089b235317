import type { Metadata } from "next";
import { Suspense } from "react";
import { Rows } from "@/ui/faces";
import { OperatorPage } from "@/rooms/operator/operator-page";

export const metadata: Metadata = { title: "Operator" };

export default function Page() {
  return (
    <Suspense fallback={<Rows />}>
      <OperatorPage />
    </Suspense>
  );
}
