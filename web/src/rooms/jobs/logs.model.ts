// What of a log is kept and shown: its end, without the codes that colour a terminal.

const CHARACTERS_MAX = 400_000;

export function cutLog(text: string): string {
  if (text.length <= CHARACTERS_MAX) return text;
  const cut = text.slice(text.length - CHARACTERS_MAX);
  return `… the beginning is left out here; the command line shows all of it …\n${cut.slice(cut.indexOf("\n") + 1)}`;
}

/** Without escape sequences and other controls; a carriage return overwrites its line, as in a terminal. */
export function plainLog(text: string): string {
  const bare = text.replace(/\u001b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\u0007\u001b]*(?:\u0007|\u001b\\)?)/g, "");
  const lines = bare.replace(/\r\n/g, "\n").split("\n");
  return lines.map((line) => line.slice(line.replace(/\r+$/, "").lastIndexOf("\r") + 1).replace(/[\u0000-\u0008\u000b-\u001f\u007f]/g, "")).join("\n");
}
