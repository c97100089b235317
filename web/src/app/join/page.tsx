import type { Metadata } from "next";
import { Suspense } from "react";
import { Rows } from "@/ui/faces";
import { JoinPage } from "@/rooms/join/join-page";

export const metadata: Metadata = { title: "Lend a machine" };

export default function Page() {
  return (
    <Suspense fallback={<Rows />}>
      <JoinPage />
    </Suspense>
  );
}
