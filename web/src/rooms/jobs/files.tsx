"use client";
// What a job made: pictures are shown, numbers are drawn, the rest can be taken home.

import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { Download } from "lucide-react";
import { useEffect, useRef, useState } from "react";
import { listSlices, pathOfFile, readFile, type Job, type OutputFile } from "@/lib/api/gateway";
import { showBytes } from "@/lib/words";
import { LineChart } from "@/ui/charts";
import { Block, Empty } from "@/ui/faces";
import { Paged } from "@/ui/pages";
import { Button, Card } from "@/ui/parts";
import { findCurves, imageType, kindOf, PREVIEW_BYTES_MAX, readPpm } from "./files.model";

const PAGE = 48;
const COLOURS = ["var(--accent)", "var(--busy)", "var(--wait)", "var(--bad)"];

interface Made {
  slice: number;
  file: OutputFile;
}

export default function Files({ job }: { job: Job }) {
  const slices = useInfiniteQuery({
    queryKey: ["job-part", job.id, "files"],
    queryFn: ({ pageParam }) => listSlices(job.id, { after: pageParam, limit: PAGE, state: "succeeded" }),
    initialPageParam: -1,
    getNextPageParam: (page) => page.next_after ?? undefined,
  });
  return (
    <Card title="Files">
      <Paged query={slices} loading={<Block className="h-24" />} itemsOf={(page) => page.slices.flatMap((slice) => slice.outputs.map((file) => ({ slice: slice.index, file })))} empty={<Empty title="No files yet">What a slice writes into its output folder appears here when it is done.</Empty>}>
        {(items: Made[]) => (
          <ul className="grid grid-cols-2 gap-3 sm:grid-cols-3 md:grid-cols-4 xl:grid-cols-6 3xl:grid-cols-8">
            {items.map((item) => (
              <li key={`${item.slice} ${item.file.path}`} className="min-w-0">
                <FileCard made={item} />
              </li>
            ))}
          </ul>
        )}
      </Paged>
    </Card>
  );
}

function FileCard({ made: { slice, file } }: { made: Made }) {
  const kind = kindOf(file.path, file.size_bytes);
  const [wanted, setWanted] = useState(kind === "image" || kind === "ppm");
  return (
    <div className="overflow-hidden rounded-lg border border-line">
      <div className="grid h-32 place-items-center overflow-hidden bg-raised">
        {kind === "none" ? <span className="text-sm text-soft">no preview</span> : wanted ? <Preview file={file} /> : <Button look="quiet" onClick={() => setWanted(true)}>Show</Button>}
      </div>
      <div className="flex items-center gap-2 px-2.5 py-1.5 text-sm">
        <span className="min-w-0 flex-1 truncate" title={file.path}>
          <span className="figure text-soft">{slice}/</span>
          {file.path}
        </span>
        <a href={pathOfFile(file.sha256)} download={`${slice}-${file.path.split("/").pop() ?? "file"}`} aria-label={`Download ${file.path} of slice ${slice}, ${showBytes(file.size_bytes)}`} title={showBytes(file.size_bytes)} className="grid size-7 place-items-center rounded-md text-soft hover:bg-raised hover:text-ink">
          <Download size={15} aria-hidden />
        </a>
      </div>
    </div>
  );
}

function Preview({ file }: { file: OutputFile }) {
  const bytes = useQuery({ queryKey: ["file", file.sha256], queryFn: () => readFile(file.sha256, PREVIEW_BYTES_MAX), staleTime: Infinity, gcTime: 60_000 });
  if (bytes.error) return <span className="p-2 text-sm text-soft">{bytes.error.message}</span>;
  if (!bytes.data) return <Block className="h-32" />;
  const kind = kindOf(file.path, file.size_bytes);
  if (kind === "image") return <Picture bytes={bytes.data} path={file.path} />;
  if (kind === "ppm") return <PpmPicture bytes={bytes.data} path={file.path} />;
  return <Text bytes={bytes.data} path={file.path} />;
}

/** The type comes from the name and is one of a few: whatever the bytes are, the browser takes them for a picture. */
function Picture({ bytes, path }: { bytes: Blob; path: string }) {
  const [url, setUrl] = useState<string | null>(null);
  useEffect(() => {
    const made = URL.createObjectURL(new Blob([bytes], { type: imageType(path) ?? "image/png" }));
    setUrl(made);
    return () => URL.revokeObjectURL(made);
  }, [bytes, path]);
  return url ? <img src={url} alt={path} className="size-full object-contain" /> : null;
}

function PpmPicture({ bytes, path }: { bytes: Blob; path: string }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const [broken, setBroken] = useState(false);
  useEffect(() => {
    let gone = false;
    void bytes.arrayBuffer().then((buffer) => {
      const picture = readPpm(new Uint8Array(buffer));
      if (gone) return;
      setBroken(!picture);
      if (!picture || !canvas.current) return;
      canvas.current.width = picture.width;
      canvas.current.height = picture.height;
      canvas.current.getContext("2d")?.putImageData(new ImageData(picture.pixels as Uint8ClampedArray<ArrayBuffer>, picture.width, picture.height), 0, 0);
    });
    return () => {
      gone = true;
    };
  }, [bytes]);
  if (broken) return <span className="text-sm text-soft">no picture</span>;
  return <canvas ref={canvas} role="img" aria-label={path} className="size-full object-contain" />;
}

function Text({ bytes, path }: { bytes: Blob; path: string }) {
  const [text, setText] = useState<string | null>(null);
  useEffect(() => {
    let gone = false;
    void bytes.text().then((read) => !gone && setText(read));
    return () => {
      gone = true;
    };
  }, [bytes]);
  if (text === null) return null;
  const curves = findCurves(path, text);
  if (!curves.length) return <pre tabIndex={0} aria-label={path} className="size-full overflow-auto p-2 font-mono text-xs whitespace-pre-wrap">{text.slice(0, 4000)}</pre>;
  const series = curves.map((curve, index) => ({ name: curve.name, colour: COLOURS[index] ?? "var(--accent)", points: curve.values.map((y, x) => ({ x, y })) }));
  return (
    <div className="w-full">
      <LineChart label={path} bare height={126} series={series} showX={(x) => String(Math.round(x))} showY={(y) => y.toPrecision(3)} />
    </div>
  );
}
