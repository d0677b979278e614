//! Fuzz targets of everything that reads bytes from a client, a peer or etcd.
//!
//! In: bytes. Out: the outcome in words. Never: a panic, or a long time.
//! One line per target in `each_target!`: its name and the inputs it begins with. `tests/random.rs` runs each of them
//! on random inputs; the program `libfuzzer` runs one guided by coverage.
#![allow(clippy::panic, reason = "a target panics to say what is wrong")]

mod targets;

/// Reader of bytes under test.
#[derive(Clone, Copy)]
pub struct Target {
    /// Name of the target, as `FUZZ_TARGET` gives it.
    pub name: &'static str,
    /// Reads the input and describes the outcome; panics where a promise is broken.
    pub run: fn(&[u8]) -> String,
    /// Inputs that the first changes are made to.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// Calls a macro with the table of targets: names and the inputs they begin with.
#[macro_export]
macro_rules! each_target {
    ($then:ident) => {
        $then! {
            json [targets::POD_JSON, br#"[1,-2.5e-7,"\ud83e\udd80",null,{"a":{},"a":[]}]"#, br#"{"spec":{"a":1,"containers":null},"status":{"conditions":[{"type":"a","status":1}]}}"#]
            yaml [targets::pod_yaml(), b"apiVersion: v1\nkind: Pod\nspec: {containers: [{name: &a c, image: *a, stdin: yes, ports: [{containerPort: 0644}]}]}\n", b"--- !!map\n? |\n  a\n: >-\n  b\n...\n", b"%TAG !e! tag:yaml.org,2002:\n---\na: &a {x: !e!int '1', 0x1F: ~}\nb: {<<: [*a, {y: .5}], x: \"\\u00e9\\\n  z\"}\n--- {[]: 1}\n"]
            protobuf [targets::pod_protobuf(), targets::POD, b"k8s\0\x0a\x0f\x0a\x02v1\x12\x09ConfigMap\x12\x05\x0a\x03\x0a\x01a"]
            cbor [targets::pod_cbor(), b"\xd9\xd9\xf7\xa3DkindCPodJapiVersionBv1HmetadataBaa", b"\xbf\x61a\x9f\xfb\x3f\xf1\x99\x99\x99\x99\x99\x9a\xf9\x3c\x00\x20\xff\x61b\xd6\x43abc\xff", b"\xc1\x1aQKg\xb0"]
            stored_values [targets::pod_protobuf(), targets::pod_cbor(), targets::POD, b"k8s\0\x0a\x0f\x0a\x02v1\x12\x09ConfigMap\x12\x05\x0a\x03\x0a\x01a", br#"{"apiVersion":"x.io/v1","kind":"Foo","metadata":{"name":"a","labels":{"b":"c"}},"spec":{"a":[1]}}"#, br#"{"apiVersion":"autoscaling/v1","kind":"HorizontalPodAutoscaler","metadata":"a","spec":[]}"#, b"[]", b"null", b"\xd9\xd9\xf7\xa2DkindCFooHmetadataBaa"]
            quantities [b"1.5Gi", b"-12e3", b"100m", b".5Ei", b"9223372036854775808", b"2E3", b"12Ki", b"+.25Mi", b"1e-33", b"K"]
            label_selectors [b"a in (b,c),!d,e!=f,g==h,i notin (j),k.l/m>5", b"x,y=z", b"a in (,b),c notin (d e", b"a<5,b= ", b"8/"]
            field_selectors [b"metadata.name=a,spec.nodeName!=b,status.phase==c\\,d\\=e", b"a=\\\\", b"a=\\x", b",,a"]
            json_patches [br#"{"a":[1,{"b":2}],"c":"d"}|[{"op":"add","path":"/a/1/x","value":1},{"op":"move","from":"/c","path":"/e"},{"op":"test","path":"/a/-","value":1},{"op":"copy","from":"/a","path":"/a/0"},{"op":"remove","path":"/a/01"},{"op":"replace","path":"/~1~0","value":null}]"#]
            merge_patches [br#"{"a":{"b":1,"c":[1]},"d":null}|{"a":{"b":null,"x":{"y":null}},"d":{}}"#]
            strategic_patches [br#"{"spec":{"containers":[{"name":"a","image":"i","ports":[{"containerPort":1}]},{"name":"b"}],"tolerations":[]}}|{"spec":{"$setElementOrder/containers":[{"name":"b"},{"name":"a"}],"containers":[{"name":"a","$patch":"delete"},{"name":"c","$retainKeys":["name"]}],"$deleteFromPrimitiveList/x":[1]},"metadata":{"$patch":"replace"}}"#]
            applies [br#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","managedFields":[{"manager":"m","operation":"Apply","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{"f:spec":{"f:containers":{"k:{\"name\":\"a\"}":{".":{},"f:name":{},"f:image":{}}}}}}]},"spec":{"containers":[{"name":"a","image":"i"}]}}|{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"},"spec":{"containers":[{"name":"b","image":"i","ports":[{"containerPort":1,"protocol":"TCP"}]}]}}"#]
            field_sets [br#"{"f:a":{".":{},"k:{\"b\":1}":{},"v:\"c\"":{}},"i:3":{}}"#]
            expressions [b"self.list.all(x, x.matches('^[a-z]+$') && size(x) < 10)", b"has(self.a) ? self.a + 1 > 2u : {'a': [1, 2.5, b'x', null]}['a'][?0].orValue(3) == 1", b"url('http://a/b').getHost() == quantity('1Gi').asInteger().format('%d') || duration('1h') < timestamp('2024-01-01T00:00:00Z') - self.t", b"cel.bind(x, self.n, [x].map(y, y * 2).sum()) in lists.range(3)"]
            json_paths [b".spec.a['b'].c[0]", b".status.conditions[?(@.type==\"Ready\")].status", b"$..a[*].b[1:3:2],c"]
            queries [b"labelSelector=a%3Db&limit=500&watch=1&x=%zz+%", b"a&b=&=c&%41=%"]
            paths [b"GET /apis/apps/v1/namespaces/a/deployments/b/scale?dryRun=All", b"GET /api/v1/watch/namespaces/a/pods?fieldSelector=metadata.name%3Db", b"DELETE //api//v1///nodes/"]
            routes [b"GET /api/v1/namespaces/a/pods/b/log", b"DELETE /api/v1/namespaces/a/namespaces/b", b"PATCH /apis/apps/v1/namespaces/a/deployments/b/scale", b"DELETE /api/v1/nodes?fieldSelector=metadata.name%3Da", b"GET /apis/rbac.authorization.k8s.io/v1/watch/clusterroles/a", b"PUT /api/v1/namespaces/a/finalize", b"HEAD //api/v1/namespaces/%2f/pods/."]
            typed_reads [br#"0{"metadata":{"name":"a","labels":{"b":null},"creationTimestamp":null},"spec":{"containers":[{"name":"c","resources":{"limits":{"cpu":1.5}},"livenessProbe":{"httpGet":{"port":"x"}}}]},"status":{"conditions":[{"lastTransitionTime":null}]}}"#, br#"1{"spec":{"ports":[{"port":80,"targetPort":null}],"clusterIPs":null},"status":{"conditions":[{"lastTransitionTime":"9999-12-31T23:59:59Z"}]}}"#, br#"6{"spec":{"renewTime":"2026-01-02T03:04:05.123456Z","leaseDurationSeconds":2147483648}}"#, b"0\x0a\x03\x0a\x01a\x12\x06\x12\x04\x0a\x01c\x12"]
            accept_headers [b"application/json;as=Table;v=v1;g=meta.k8s.io,application/vnd.kubernetes.protobuf;q=0.5,*/*;q=0.1", b"application/cbor;stream=watch"]
            delete_options [br#"{"kind":"DeleteOptions","apiVersion":"v1","propagationPolicy":"Foreground","preconditions":{"uid":"x"}}|gracePeriodSeconds=1&orphanDependents=x"#]
            schemas [br#"{"type":"object","properties":{"a":{"type":"string","pattern":"^(a|b)*$","default":"x"},"b":{"type":"array","items":{"x-kubernetes-int-or-string":true},"x-kubernetes-list-type":"set"}},"x-kubernetes-validations":[{"rule":"self.a == 'x'"}]}|{"a":1,"b":["x",2]}"#]
            spdy_frames [targets::spdy(), b"\x80\x03\x00\x06\x00\x00\x00\x04\x00\x00\x00\x01", b"\x00\x00\x00\x01\x01\x00\x00\x02hi"]
            http_heads [b"POST /a<?b#c%41 HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\nContent-Length: 2\r\n\r\n", b"OPTIONS * HTTP/1.0\nA: b\n c\nTransfer-Encoding: chunked\nExpect: 100-continue, x\n\n"]
            websocket_frames [b"\x82\x85\x01\x02\x03\x04\x01hello", b"\x89\x80\x00\x00\x00\x00\x88\x82\x00\x00\x00\x00\x03\xe8", b"\x02\x81\x00\x00\x00\x00\x00\x80\xfe\x00\x02\x00\x00\x00\x00ab"]
        }
    };
}

macro_rules! list {
    ($($name:ident [$($seed:expr),+ $(,)?])+) => {
        /// All targets, in the order of the table.
        pub const ALL: &[Target] = &[$(Target {
            name: stringify!($name),
            run: targets::$name,
            seeds: || vec![$(AsRef::<[u8]>::as_ref(&$seed).to_vec()),+],
        }),+];
    };
}
each_target!(list);

/// Returns the target of that name.
pub fn target(name: &str) -> Option<&'static Target> {
    ALL.iter().find(|target| target.name == name)
}
