import type { Metadata } from "next";
import { Suspense } from "react";
import { Rows } from "@/ui/faces";
import { WalletPage } from "@/rooms/wallet/wallet-page";

export const metadata: Metadata = { title: "Wallet" };

export default function Page() {
  return (
    <Suspense fallback={<Rows />}>
      <WalletPage />
    </Suspense>
  );
}
