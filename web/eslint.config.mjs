import reactHooks from "eslint-plugin-react-hooks";
import tseslint from "typescript-eslint";

export default tseslint.config(
  { ignores: [".next/**", "out/**", ".models/**", "node_modules/**", "next-env.d.ts", "src/lib/api/schema.d.ts"] },
  ...tseslint.configs.strict,
  {
    plugins: { "react-hooks": reactHooks },
    rules: {
      "react-hooks/rules-of-hooks": "error",
      "react-hooks/exhaustive-deps": "error",
      "@typescript-eslint/no-non-null-assertion": "error",
      // Only the gateway and the live stream speak with the hub.
      "no-restricted-globals": ["error", "fetch", "EventSource"],
      // A string of a stranger's is text, never markup.
      "no-restricted-syntax": [
        "error",
        { selector: "JSXAttribute[name.name='dangerouslySetInnerHTML']", message: "Show it as text." },
        { selector: "AssignmentExpression > MemberExpression[property.name='innerHTML']", message: "Show it as text." },
      ],
    },
  },
  { files: ["src/lib/api/client.ts", "src/lib/live.ts"], rules: { "no-restricted-globals": "off" } },
);
