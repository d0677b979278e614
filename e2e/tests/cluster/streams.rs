//! kubectl's commands that hold a connection open: watches, followed logs, terminals, editors, forwarded ports.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use e2e::testing::{Cluster, run};

/// All of them, on the pod `shell` and the config map `applied` of the earlier phases.
pub fn stay_open(cluster: &Cluster) {
    follow_logs(cluster);
    use_a_terminal(cluster);
    edit(cluster);
    watch(cluster);
    forward_a_port(cluster);
}

fn follow_logs(cluster: &Cluster) {
    let mut brief = "run brief --image=busybox:1.36 --restart=Never -- sh -c".split(' ').collect::<Vec<_>>();
    brief.push("echo one; sleep 4; echo two");
    cluster.kubectl_args(&brief);
    cluster.kubectl("wait pod/brief --for=jsonpath={.status.phase}=Running --timeout=30s");
    // Ends when the container does.
    assert_eq!(cluster.kubectl("logs -f brief"), "one\ntwo\n");
    assert_eq!(cluster.kubectl("logs brief --since=1h"), "one\ntwo\n");
    assert_eq!(cluster.kubectl("logs brief --since-time=2100-01-01T00:00:00Z"), "");
    cluster.kubectl("delete pod brief --now");
}

/// A terminal of a size of its own, which the process in the container has to see.
fn use_a_terminal(cluster: &Cluster) {
    let inside = r#"until [ "$(stty size)" = "33 99" ]; do sleep 0.1; done; tty; exit 7"#;
    let line =
        format!("stty rows 33 cols 99; {} exec -it shell -- timeout 20 sh -c '{inside}'", cluster.command_line());
    let said = run("script", &["-qec", &line, "/dev/null"], Some(""));
    assert!(said.out.contains("/dev/pts/"), "no terminal: {}{}", said.out, said.err);
    assert!(said.out.contains("exit code 7"), "{}", said.out);
}

fn edit(cluster: &Cluster) {
    let line = format!("{} edit configmap applied", cluster.command_line());
    let said = run("env", &["KUBE_EDITOR=sed -i s/green/violet/", "sh", "-c", &line], None);
    assert!(said.out.contains("configmap/applied edited"), "{}{}", said.out, said.err);
    assert_eq!(cluster.kubectl("get cm applied -o jsonpath={.data.color}"), "violet");
    let unchanged = run("env", &["KUBE_EDITOR=true", "sh", "-c", &line], None);
    assert!(unchanged.err.contains("Edit cancelled, no changes made."), "{}{}", unchanged.out, unchanged.err);
}

/// A watch shows what is there, and then what happens, until it is left.
fn watch(cluster: &Cluster) {
    let line =
        format!("exec {} get cm applied --watch -o jsonpath='{{.data.color}}{{\"\\n\"}}'", cluster.command_line());
    let mut watching = Command::new("sh").args(["-c", &line]).stdout(Stdio::piped()).spawn().expect("sh starts");
    let mut lines = BufReader::new(watching.stdout.take().expect("its output is piped")).lines();
    let mut next = || lines.next().and_then(Result::ok).unwrap_or_default();
    assert_eq!(next(), "violet");
    cluster.kubectl_args(&["patch", "cm", "applied", "-p", r#"{"data":{"color":"white"}}"#]);
    assert_eq!(next(), "white");
    end(&mut watching);
}

fn forward_a_port(cluster: &Cluster) {
    let line = format!("exec {} port-forward pod/shell :8080", cluster.command_line());
    let mut forwarding = Command::new("sh").args(["-c", &line]).stdout(Stdio::piped()).spawn().expect("sh starts");
    let mut first = String::new();
    let mut output = BufReader::new(forwarding.stdout.take().expect("its output is piped"));
    output.read_line(&mut first).expect("kubectl says where it listens");
    let address = first.trim_start_matches("Forwarding from ").split(' ').next().unwrap_or_default();
    for _ in 0..3 {
        let said = run("curl", &["-sS", "--noproxy", "*", "--max-time", "10", &format!("http://{address}")], None);
        assert_eq!(said.out, "hello\n", "{first}{}", said.err);
    }
    end(&mut forwarding);
}

fn end(child: &mut std::process::Child) {
    child.kill().expect("it still runs");
    child.wait().expect("it ends");
}
