"use client";
// A question before something that cannot be undone, in the browser's own dialog: keyboard and focus come with it.
// Fields among the children are checked before the answer counts.

import { useId, useRef, type ReactNode } from "react";
import { Button } from "./parts";

export function Confirm({ trigger, title, children, action, onConfirm, danger = true, disabled = false, keep = "Keep it" }: { trigger: ReactNode; title: string; children: ReactNode; action: string; onConfirm: () => void; danger?: boolean; disabled?: boolean; keep?: string }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const id = useId();
  return (
    <>
      <Button look={danger ? "danger" : "plain"} disabled={disabled} onClick={() => dialog.current?.showModal()}>
        {trigger}
      </Button>
      <dialog ref={dialog} aria-labelledby={id} className="m-auto w-[28rem] max-w-[calc(100vw-2rem)] rounded-xl border border-line bg-surface p-5 text-left text-ink shadow-xl">
        <h2 id={id} className="text-lg font-semibold">
          {title}
        </h2>
        <form method="dialog" onSubmit={onConfirm}>
          <div className="mt-2 text-soft">{children}</div>
          <div className="mt-5 flex justify-end gap-2">
            <Button look="quiet" onClick={() => dialog.current?.close()}>
              {keep}
            </Button>
            <Button type="submit" look={danger ? "danger" : "main"}>
              {action}
            </Button>
          </div>
        </form>
      </dialog>
    </>
  );
}
