"use client";
// A value once it has stopped changing, so that not every keystroke is a question to the hub.

import { useEffect, useState } from "react";

export function useLater<T>(value: T, milliseconds = 300): T {
  const [later, setLater] = useState(value);
  useEffect(() => {
    const timer = window.setTimeout(() => setLater(value), milliseconds);
    return () => window.clearTimeout(timer);
  }, [value, milliseconds]);
  return later;
}
