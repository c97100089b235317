import type { Metadata } from "next";
import { Suspense } from "react";
import { Rows } from "@/ui/faces";
import { JobPage } from "@/rooms/jobs/job-page";

export const metadata: Metadata = { title: "Job" };

export default function Page() {
  return (
    <Suspense fallback={<Rows />}>
      <JobPage />
    </Suspense>
  );
}
