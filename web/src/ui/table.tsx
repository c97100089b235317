"use client";
// One table for all lists: figures to the right, rows that lead somewhere, room to scroll on a phone.

import Link from "next/link";
import type { ReactNode } from "react";

export interface Column<T> {
  name: string;
  cell: (row: T) => ReactNode;
  right?: boolean;
  /** Left out where the screen is narrow. */
  wide?: boolean;
}

export function Table<T>({ label, columns, rows, keyOf, hrefOf, nameOf }: { label: string; columns: Column<T>[]; rows: T[]; keyOf: (row: T) => string; hrefOf?: (row: T) => string; nameOf?: (row: T) => string }) {
  const hidden = (column: Column<T>) => (column.wide ? "hidden md:table-cell" : "");
  return (
    <div className="overflow-x-auto" role="region" aria-label={label} tabIndex={0}>
      <table className="w-full border-collapse text-left">
        <thead>
          <tr>
            {columns.map((column) => (
              <th key={column.name} scope="col" className={`border-b border-line px-2 py-2 text-sm font-medium whitespace-nowrap text-soft first:pl-4 last:pr-4 sm:px-4 first:sm:pl-5 last:sm:pr-5 ${column.right ? "text-right" : ""} ${hidden(column)}`}>
                {column.name}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr key={keyOf(row)} className="group relative border-b border-line last:border-0 hover:bg-raised/60">
              {columns.map((column, index) => (
                <td key={column.name} className={`px-2 py-2.5 align-middle first:pl-4 last:pr-4 sm:px-4 first:sm:pl-5 last:sm:pr-5 ${column.right ? "text-right whitespace-nowrap" : ""} ${hidden(column)}`}>
                  {index === 0 && hrefOf ? (
                    <Link href={hrefOf(row)} aria-label={nameOf?.(row)} className="font-medium after:absolute after:inset-0 hover:underline">
                      {column.cell(row)}
                    </Link>
                  ) : (
                    column.cell(row)
                  )}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
