import type { Metadata } from "next";
import { Empty } from "@/ui/faces";
import { Card, LinkButton, Page } from "@/ui/parts";

export const metadata: Metadata = { title: "Not found" };

export default function NotFound() {
  return (
    <Page title="There is nothing here">
      <Card>
      <Empty title="This page does not exist" action={<LinkButton href="/">To the grid</LinkButton>}>
        It may have moved, or you may lack the role that it needs.
      </Empty>
      </Card>
    </Page>
  );
}
