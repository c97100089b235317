import path from "node:path";
import type { NextConfig } from "next";

// A folder of files that any server can hand out; the hub does. Detail pages are named by query parameter, because a
// static export knows no ids.
const config: NextConfig = {
  output: "export",
  trailingSlash: true,
  reactStrictMode: true,
  // `npm run types` is a step of its own in `make web/check`; here it would double the time of a build.
  typescript: { ignoreBuildErrors: true },
  images: { unoptimized: true },
  turbopack: { root: path.resolve(import.meta.dirname) },
  experimental: { optimizePackageImports: ["lucide-react"] },
};

export default config;
