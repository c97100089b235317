import type { Metadata } from "next";
import { Suspense } from "react";
import { Rows } from "@/ui/faces";
import { KeysPage } from "@/rooms/keys/keys-page";

export const metadata: Metadata = { title: "Account and keys" };

export default function Page() {
  return (
    <Suspense fallback={<Rows />}>
      <KeysPage />
    </Suspense>
  );
}
