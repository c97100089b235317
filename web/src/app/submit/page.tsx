import type { Metadata } from "next";
import { Suspense } from "react";
import { Rows } from "@/ui/faces";
import { SubmitPage } from "@/rooms/submit/submit-page";

export const metadata: Metadata = { title: "Submit a job" };

export default function Page() {
  return (
    <Suspense fallback={<Rows />}>
      <SubmitPage />
    </Suspense>
  );
}
