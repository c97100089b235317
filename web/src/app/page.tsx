import { GridPage } from "@/rooms/grid/grid-page";

export default function Home() {
  return <GridPage />;
}
