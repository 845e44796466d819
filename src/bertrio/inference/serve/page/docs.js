// Shows openapi.json: each route with its fields and a command that asks it. Needs no other host.
"use strict";

// The JSON type of a schema in words.
function typeOf(schema, schemas) {
  if (schema.$ref) return typeOf(schemas[schema.$ref.split("/").pop()], schemas);
  if (schema.anyOf) return schema.anyOf.map((one) => typeOf(one, schemas)).join(" or ");
  if (schema.prefixItems) return `[${schema.prefixItems.map((one) => typeOf(one, schemas)).join(", ")}]`;
  if (schema.type === "array") return `list of ${typeOf(schema.items, schemas)}`;
  return schema.type || "any";
}

function fields(title, content, schemas) {
  const schema = content?.["application/json"]?.schema;
  const resolved = schema?.$ref ? schemas[schema.$ref.split("/").pop()] : schema;
  const named = [];
  const collect = (properties, prefix) => {
    for (const [name, value] of Object.entries(properties || {})) {
      named.push([prefix + name, value]);
      const item = value.items?.$ref;
      if (item) collect(schemas[item.split("/").pop()].properties, `${prefix}${name}[].`);
    }
  };
  collect(resolved?.properties, "");
  const rows = named.flatMap(([name, value]) => [
    make("dt", {}, make("code", { textContent: name })),
    make("dd", { textContent: typeOf(value, schemas) + (value.description ? `: ${value.description}` : "") }),
  ]);
  return rows.length ? [make("p", { className: "soft", textContent: title }), make("dl", { className: "fields" }, ...rows)] : [];
}

function commands(path, method, tasks) {
  if (method !== "post") return [`curl ${location.origin}${path}`];
  return tasks.map((task) => {
    const row = task.kind === "pair" ? ["A man sings.", "Someone is singing."] : "A warm and funny film.";
    const body = JSON.stringify({ rows: [row] });
    return `curl -H 'Content-Type: application/json' -d '${body}' ${location.origin}${path.replace("{task}", task.name)}`;
  });
}

async function start() {
  const [api, { tasks }] = await Promise.all(["openapi.json", "tasks"].map(async (path) => (await fetch(path)).json()));
  const schemas = api.components?.schemas || {};
  at("about").textContent = api.info.description;
  for (const [path, methods] of Object.entries(api.paths)) {
    for (const [method, route] of Object.entries(methods)) {
      at("routes").append(
        make("section", { className: "route" },
          make("h2", {}, make("code", { textContent: `${method.toUpperCase()} ${path}` })),
          make("p", { textContent: route.summary }),
          ...commands(path, method, tasks).map((command) => make("pre", { textContent: command })),
          ...fields("Body", route.requestBody?.content, schemas),
          ...fields("Answer", route.responses["200"]?.content, schemas)),
      );
    }
  }
}
start().catch(() => { at("about").textContent = "The server can't be reached. Is it still running?"; });
