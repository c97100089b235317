import type { Metadata } from "next";
import { Suspense } from "react";
import { Rows } from "@/ui/faces";
import { JobsPage } from "@/rooms/jobs/jobs-page";

export const metadata: Metadata = { title: "Jobs" };

export default function Page() {
  return (
    <Suspense fallback={<Rows />}>
      <JobsPage />
    </Suspense>
  );
}
