#!/usr/bin/env python3
"""Writes the IDL from captured facts: generate.py FACTS_DIR [OUT_DIR]

The .proto files are the source of truth afterwards; this script exists to bring them to a new release.
"""
import glob
import json
import os
import sys

FACTS = sys.argv[1]
OUT = sys.argv[2] if len(sys.argv) > 2 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "k8s")


def load(name):
    with open(os.path.join(FACTS, name)) as f:
        return json.load(f)


FACT = load("types.json")
TYPES, KINDS, NAMED, WRAPPERS = FACT["types"], FACT["kinds"], FACT["namedTypes"], FACT["protoWrappers"]
DISCOVERY = load("discovery.json")

# Package -> (file, group, version)
META = "k8s.io.apimachinery.pkg.apis.meta.v1"
PACKAGES = {
    META: ("meta/v1.proto", "meta.k8s.io", "v1"),
    "k8s.io.apimachinery.pkg.apis.meta.v1beta1": ("meta/v1beta1.proto", "meta.k8s.io", "v1beta1"),
    "k8s.io.apimachinery.pkg.runtime": ("runtime/runtime.proto", "", ""),
    "k8s.io.apimachinery.pkg.util.intstr": ("util/intstr.proto", "", ""),
    "k8s.io.apimachinery.pkg.api.resource": ("api/resource.proto", "", ""),
    "k8s.io.apiextensions_apiserver.pkg.apis.apiextensions.v1": ("apiextensions/v1.proto", "apiextensions.k8s.io", "v1"),
    "k8s.io.kube_aggregator.pkg.apis.apiregistration.v1": ("apiregistration/v1.proto", "apiregistration.k8s.io", "v1"),
    "k8s.io.apiserver.pkg.apis.audit.v1": ("audit/v1.proto", "audit.k8s.io", "v1"),
    "k8s.io.api.apidiscovery.v2": ("apidiscovery/v2.proto", "apidiscovery.k8s.io", "v2"),
    "k8s.io.api.apidiscovery.v2beta1": ("apidiscovery/v2beta1.proto", "apidiscovery.k8s.io", "v2beta1"),
    "k8s.io.api.admission.v1": ("admission/v1.proto", "admission.k8s.io", "v1"),
    "k8s.io.api.storage.v1beta1": ("storage/v1beta1.proto", "storage.k8s.io", "v1beta1"),
}
for item in ["core.v1", "apps.v1", "authentication.v1", "authorization.v1", "autoscaling.v1", "autoscaling.v2", "batch.v1",
             "certificates.v1", "coordination.v1", "discovery.v1", "events.v1", "flowcontrol.v1", "networking.v1", "node.v1",
             "policy.v1", "rbac.v1", "resource.v1", "scheduling.v1", "storage.v1", "admissionregistration.v1"]:
    room, version = item.split(".")
    PACKAGES["k8s.io.api." + item] = (room + "/" + version + ".proto", None, version)

FORMS = {
    "k8s.io.apimachinery.pkg.api.resource.Quantity": ("quantity", [("optional string string = 1",)]),
    "k8s.io.apimachinery.pkg.util.intstr.IntOrString": (
        "int_or_string", [("optional int64 type = 1",), ("optional int32 intVal = 2",), ("optional string strVal = 3",)]),
    META + ".Time": ("time", [("optional int64 seconds = 1",), ("optional int32 nanos = 2",)]),
    META + ".MicroTime": ("micro_time", [("optional int64 seconds = 1",), ("optional int32 nanos = 2",)]),
    META + ".Duration": ("duration", [("optional int64 duration = 1",)]),
    META + ".FieldsV1": ("fields_v1", [("optional bytes Raw = 1",)]),
    "k8s.io.apimachinery.pkg.runtime.RawExtension": ("raw_extension", [("optional bytes raw = 1",)]),
    "k8s.io.apiextensions_apiserver.pkg.apis.apiextensions.v1.JSON": ("json", [("optional bytes raw = 1",)]),
}
APIEXT = "k8s.io.apiextensions_apiserver.pkg.apis.apiextensions.v1."
FORMS[APIEXT + "JSONSchemaPropsOrBool"] = (
    "schema_or_bool", [("optional bool allows = 1",), ("optional JSONSchemaProps schema = 2",)])
FORMS[APIEXT + "JSONSchemaPropsOrArray"] = (
    "schema_or_array", [("optional JSONSchemaProps schema = 1",), ("repeated JSONSchemaProps jSONSchemas = 2",)])
FORMS[APIEXT + "JSONSchemaPropsOrStringArray"] = (
    "schema_or_strings", [("optional JSONSchemaProps schema = 1",), ("repeated string property = 2",)])
FORMS["k8s.io.apimachinery.pkg.runtime.Unknown"] = (
    "any", [("optional bytes raw = 2",), ("optional string contentEncoding = 3",), ("optional string contentType = 4",)])
SKIP = {"k8s.io.apimachinery.pkg.api.resource.QuantityValue",
        "k8s.io.apimachinery.pkg.runtime.TypeMeta", META + ".TypeMeta"}
ANY = "ironclad.AnyValue"

# Group and kind of resources whose objects a delete answers with.
SCHEMAS, RETURNED = {}, set()
for path in sorted(glob.glob(os.path.join(FACTS, "openapi", "*.json"))):
    if path.endswith("openapi-v2.json"):
        continue
    with open(path) as f:
        document = json.load(f)
    SCHEMAS.update(document.get("components", {}).get("schemas", {}))
    for item in document.get("paths", {}).values():
        delete = item.get("delete", {})
        if delete.get("x-kubernetes-action") == "delete" and "meta.v1.Status" not in json.dumps(delete["responses"]["200"]):
            gvk = delete["x-kubernetes-group-version-kind"]
            RETURNED.add((gvk["group"], gvk["kind"]))


def openapi_name(name):
    rest = name[len("k8s.io."):]
    return "io.k8s." + rest.replace("apiextensions_apiserver", "apiextensions-apiserver").replace("kube_aggregator", "kube-aggregator")


def package_of(name):
    return name.rsplit(".", 1)[0]


def q(text):
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def aggregate(pairs):
    """Options in text format."""
    out = []
    for key, value in pairs:
        if value is None or value is False or value == [] or value == "":
            continue
        for one in value if isinstance(value, list) else [value]:
            if one is True:
                out.append(key + ": true")
            elif isinstance(one, int):
                out.append("%s: %d" % (key, one))
            elif isinstance(one, tuple):
                out.append("%s { %s }" % (key, aggregate(one[0])))
            else:
                out.append("%s: %s" % (key, q(one)))
    return " ".join(out)


def short_go(name):
    """k8s.io.api.core.v1.Protocol -> v1.Protocol"""
    return ".".join(name.split(".")[-2:])


def proto_type(field_type, proto):
    """Go type expression -> (label, proto type, pointer)."""
    pointer = field_type.startswith("*")
    bare = field_type.lstrip("*")
    if proto and proto.startswith("map<string,"):
        return "", "map<string, %s>" % proto[len("map<string,"):-1], pointer
    if proto and "." in proto:
        return "optional", proto, pointer
    if bare.startswith("map[string]"):
        return "", "map<string, %s>" % proto_type(bare[len("map[string]"):], None)[1], pointer
    if bare.startswith("[]"):
        return "repeated", proto_type(bare[2:], None)[1], pointer
    return "optional", {"float64": "double", "any": ANY}.get(bare, bare), pointer


def identifier(text):
    return "".join(c if c.isalnum() or c == "_" else "_" for c in text)


def field_line(name, field, number, schema):
    label, ptype, pointer = proto_type(field["type"], field.get("proto"))
    json_name = field.get("json", "")
    pname = identifier(field.get("protoName") or json_name or field["go"][0].lower() + field["go"][1:])
    prop = (schema or {}).get("properties", {}).get(json_name, {})
    options = [("json", json_name if json_name != pname and not field.get("inline") else None)]
    options += [("pointer", pointer), ("omitempty", bool(field.get("omitempty"))), ("omitzero", bool(field.get("omitzero")))]
    options += [("inline", bool(field.get("inline")))]
    kind = prop.get("x-kubernetes-list-type")
    is_list = field["type"].lstrip("*").startswith("[]")
    options += [("list", kind if kind in ("set", "map") else None), ("keys", prop.get("x-kubernetes-list-map-keys", []))]
    options += [("unlisted", bool(is_list and prop and not kind))]
    options += [("atomic_map", prop.get("x-kubernetes-map-type") == "atomic")]
    options += [("granular", prop.get("x-kubernetes-map-type") == "granular")]
    options += [("patch", field.get("patchStrategy")), ("merge_key", field.get("patchMergeKey"))]
    default = prop.get("default")
    # Zero values go without saying where the field is always written.
    implied = not pointer and not field.get("omitempty") and default in ("", 0, False)
    if default not in (None, {}) and not implied:
        options += [("default", json.dumps(default))]
    options += [("required", json_name in (schema or {}).get("required", []))]
    enum = prop.get("enum") or prop.get("items", {}).get("enum") or prop.get("additionalProperties", {}).get("enum") or []
    options += [("enum", enum)]
    named = field.get("named")
    options += [("go", short_go(named) if named and not named.startswith("time.") else None)]
    opts = aggregate(options)
    text = "%s %s %s = %d" % (label, ptype, pname, number) if label else "%s %s = %d" % (ptype, pname, number)
    return "  " + text + (" [(ironclad.field) = { %s }];" % opts if opts else ";")


# Resource rows.
STORED = {}
with open(os.path.join(FACTS, "etcd-keys.txt")) as f:
    for line in f:
        cols = line.rstrip("\n").split("\t")
        if line.startswith("#") or "{crd" in line or len(cols) < 4 or not cols[0].startswith("/registry"):
            continue
        key = cols[0].replace("/{namespace}", "").replace("/{name}", "")
        if "masterleases" in key or "/ranges/" in key:
            continue
        STORED[cols[3]] = (key, cols[2], cols[1] == "json")
GROUP_ORDER, VERSION_ORDER, ROWS = {"": 0}, {("", "v1"): 0}, {}
for i, item in enumerate(DISCOVERY["aggregated"]["/apis"]["items"]):
    GROUP_ORDER[item["metadata"]["name"]] = i + 1
    for j, version in enumerate(item["versions"]):
        VERSION_ORDER[(item["metadata"]["name"], version["version"])] = j
for path, doc in DISCOVERY["legacy"].items():
    if "resources" not in doc:
        continue
    group, _, version = doc["groupVersion"].rpartition("/")
    for r in doc["resources"]:
        if "/" in r["name"]:
            continue
        subs = [s for s in doc["resources"] if s["name"].startswith(r["name"] + "/")]
        ROWS[(group, version, r["kind"])] = (r, subs)


def resource_options(group, version, kind):
    if (group, version, kind) not in ROWS:
        return None
    r, subs = ROWS[(group, version, kind)]
    etcd, storage, as_json = None, None, False
    if "storageVersionHash" in r:
        etcd, storage, as_json = STORED[kind]
        # CRDs are kept in the hub's old version, which has no IDL: the row keeps the apiVersion only.
        own = group + "/" + version if group else version
        storage = storage if storage != own else None
    sub_options = []
    for s in subs:
        sub_options.append(([
            ("name", s["name"].split("/", 1)[1]), ("kind", s["kind"]), ("verb", s["verbs"]),
            ("group", s.get("group")), ("version", s.get("version"))],))
    return [
        ("plural", r["name"]), ("singular", r["singularName"]), ("short", r.get("shortNames", [])),
        ("category", r.get("categories", [])), ("namespaced", r["namespaced"]), ("verb", r["verbs"]),
        ("sub", sub_options), ("storage", storage), ("etcd", etcd), ("json", as_json), ("hash", r.get("storageVersionHash")),
        ("list_kind", kind + "List" if "list" in r["verbs"] else None), ("returns_deleted", (group, kind) in RETURNED)]


REGISTERED = {}
for k in KINDS:
    REGISTERED.setdefault(k["type"], []).append((k["group"], k["version"], k["kind"]))
for package, (path, group, version) in list(PACKAGES.items()):
    if group is None:
        for t, gvks in REGISTERED.items():
            if package_of(t) == package:
                group = gvks[0][0]
        PACKAGES[package] = (path, group, version)


def published(name):
    """Schema of a type; one that is not published by itself borrows its fields from where it is embedded."""
    if openapi_name(name) in SCHEMAS:
        return SCHEMAS[openapi_name(name)]
    outer = name
    while openapi_name(outer) not in SCHEMAS:
        above = [t for t, e in sorted(TYPES.items()) for f in e["fields"] or [] if f.get("inline") and f["type"] == outer]
        if not above:
            return {}
        outer = above[0]
    borrowed = SCHEMAS[openapi_name(outer)]
    return {"properties": borrowed.get("properties", {}), "required": borrowed.get("required", [])}


def message(name, group, version, imports):
    entry = TYPES[name]
    short = name.rsplit(".", 1)[1]
    schema = published(name)
    fields = entry["fields"]
    json_only = entry.get("proto") is False
    options = []
    registered = REGISTERED.get(name, [])
    own = [r for r in registered if r[:2] == (group, version)]
    for r in registered:
        assert r[2] == short, (name, r)
    others = [r[0] + "/" + r[1] if r[0] else r[1] for r in registered if r[:2] != (group, version)]
    form = FORMS.get(name)
    type_meta = any(f.get("inline") and f["type"] == META + ".TypeMeta" for f in fields)
    options += [("kind", bool(own)), ("registered", others), ("type_meta", type_meta), ("form", form[0] if form else None),
                ("atomic", schema.get("x-kubernetes-map-type") == "atomic"), ("json_only", json_only)]
    if "x-kubernetes-unions" in schema:
        options += [("unions", json.dumps(schema["x-kubernetes-unions"], separators=(",", ":")))]
    lines = ["message %s {" % short]
    opts = aggregate(options)
    if opts:
        lines.append("  option (ironclad.type) = { %s };" % opts)
    row = resource_options(group, version, short) if own else None
    if row:
        lines.append("  option (ironclad.resource) = { %s };" % aggregate(row))
    if form:
        lines += ["  %s;" % line[0] for line in form[1]]
    else:
        next_number = 1
        for f in fields:
            if f.get("inline") and f["type"] == META + ".TypeMeta":
                continue
            number = f.get("num")
            if number is None:
                assert json_only, (name, f)
                number, next_number = next_number, next_number + 1
            line = field_line(name, f, number, schema)
            for word in line.replace("<", " ").replace(">", " ").replace(",", " ").split(" "):
                if word.startswith("k8s.io.") or word.startswith("ironclad.Any"):
                    imports.add(package_of(word))
            lines.append(line)
    lines.append("}")
    return lines


def main():
    for package, (path, group, version) in sorted(PACKAGES.items()):
        names = sorted(n for n in TYPES if package_of(n) == package and n not in SKIP)
        imports, body = set(), []
        for name in names:
            body += message(name, group, version, imports) + [""]
        for name in sorted(WRAPPERS):
            if package_of(name) == package:
                body += ["message %s {" % name.rsplit(".", 1)[1], '  option (ironclad.type) = { form: "string_list" };',
                         "  repeated string items = 1;", "}", ""]
        head = ['syntax = "proto2";', "", "package %s;" % package, ""]
        files = {"k8s/ironclad/options.proto"}
        for i in imports - {package}:
            files.add("k8s/ironclad/any.proto" if i == "ironclad" else "k8s/" + PACKAGES[i][0])
        head += ['import "%s";' % f for f in sorted(files)] + [""]
        order = [("group", group), ("version", version)]
        if (group, version) in VERSION_ORDER and version:
            order_text = aggregate(order) + " group_order: %d version_order: %d" % (GROUP_ORDER[group], VERSION_ORDER[(group, version)])
        else:
            order_text = aggregate(order)
        order_text += " go_package: " + q(package.rsplit(".", 1)[1])
        head += ["option (ironclad.file) = { %s };" % order_text, ""]
        target = os.path.join(OUT, path)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "w") as f:
            f.write("\n".join(head + body).rstrip("\n") + "\n")


main()
