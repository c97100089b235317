import type { Metadata } from "next";
import { Suspense } from "react";
import { Rows } from "@/ui/faces";
import { SignInPage } from "@/rooms/sign-in/sign-in-page";

export const metadata: Metadata = { title: "Sign in" };

export default function Page() {
  return (
    <Suspense fallback={<Rows />}>
      <SignInPage />
    </Suspense>
  );
}
