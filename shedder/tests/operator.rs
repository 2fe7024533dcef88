//! What an operator sees of a level and does with it.

#![cfg(test)]

mod support;

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use support::run::shedder;
use support::{Daemon, Net, Setup, eventually};

const ENDPOINT: ([u8; 4], u16) = ([127, 0, 0, 1], 9464);

fn start() -> (Net, Daemon) {
    let net = Net::new();
    let rest = "admission_level = \"emergency\"\n[[port]]\nport = 8080\nrate = \"100/s\"\n";
    let daemon = Daemon::start(&net, &Setup { mode: "enforce", via: "auto", rest });
    (net, daemon)
}

fn get(net: &Net, path: &str) -> (u16, String) {
    let endpoint = SocketAddr::from(ENDPOINT);
    let answer = || xtask::testbed::http_get(endpoint, path, Duration::from_secs(5));
    net.server.enter(answer).unwrap().unwrap()
}

fn host_level(daemon: &Daemon) -> String {
    daemon.status()["levels"][0]["level"].as_str().unwrap().to_owned()
}

fn explain(daemon: &Daemon, arguments: &[&str]) -> String {
    let output = daemon.verb(&[&["explain"], arguments].concat());
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_pinned_level_is_obeyed_shown_and_given_back() {
    let (net, daemon) = start();
    let level_file = daemon.directory.path().join("level");
    let word = || fs::read_to_string(&level_file).unwrap();
    assert_eq!(word(), "normal\n");
    assert_eq!(get(&net, "/admission").0, 200);

    daemon.must(&["level", "emergency", "--for", "10m"]);
    let text = explain(&daemon, &[]);
    assert!(text.starts_with("host is at EMERGENCY for "), "{text}");
    assert!(
        text.contains("an operator pinned it for ") && text.contains("its signals demand normal"),
        "{text}"
    );
    let text = explain(&daemon, &["8080"]);
    assert!(text.contains("tcp port 8080 is at EMERGENCY: because host is"), "{text}");
    let document: Value = serde_json::from_str(&explain(&daemon, &["8080", "--json"])).unwrap();
    assert_eq!(document["pin"]["level"], "emergency");
    let classes = document["port"]["classes"].as_array().unwrap();
    let binding = |class: &str| {
        classes.iter().find(|entry| entry["class"] == class).map(|entry| entry["binding"].clone()).unwrap()
    };
    assert_eq!(binding("batch"), serde_json::json!(["closed"]));
    assert_eq!(binding("control"), serde_json::json!([]));
    eventually("the file says so", || word() == "emergency\n");
    assert_eq!(get(&net, "/admission").0, 503);
    assert_eq!(get(&net, "/admission?port=8080").0, 503);
    let pressure: Value = serde_json::from_str(&get(&net, "/pressure").1).unwrap();
    assert_eq!((&pressure["level"], &pressure["ports"]["8080"]), (&"emergency".into(), &"emergency".into()));
    assert_eq!(pressure["pinned"], true);

    daemon.must(&["level", "high"]);
    assert!(explain(&daemon, &[]).contains("an operator pinned it until `shedder level auto`"));
    assert_eq!(get(&net, "/admission").0, 200, "high is below emergency");
    assert_eq!(get(&net, "/admission?level=high").0, 503);

    daemon.must(&["level", "auto"]);
    assert_eq!(host_level(&daemon), "normal");
    assert!(!explain(&daemon, &["8080"]).contains("operator"));
    eventually("the file says so", || word() == "normal\n");
    assert_eq!(get(&net, "/admission?level=moderate").0, 200);
}

#[test]
fn a_level_that_is_pinned_for_a_time_reverts_by_itself() {
    let (net, daemon) = start();
    daemon.must(&["level", "emergency", "--for", "5s"]);
    assert_eq!(host_level(&daemon), "emergency");
    let port = daemon.port("8080");
    assert_eq!(port["classes"]["batch"]["quota"]["closed"], true, "{port}");
    eventually("the level reverts", || host_level(&daemon) == "normal");
    eventually("so do the quotas", || {
        let quota = daemon.port("8080")["classes"]["batch"]["quota"].clone();
        quota["closed"] == false && quota["rate_per_second"].as_f64().is_some_and(|rate| rate > 99.0)
    });
    let metrics = get(&net, "/metrics").1;
    for (from, to) in [("normal", "emergency"), ("emergency", "normal")] {
        let step = format!(
            "shedder_level_transitions_total{{scope=\"host\",from=\"{from}\",to=\"{to}\",signal=\"operator\"}} 1\n"
        );
        assert!(metrics.contains(&step), "{metrics}");
    }
}

#[test]
fn every_series_of_pressure_is_there_from_the_first_scrape() {
    let net = Net::new();
    // Named, so that it is read; it never demands anything here.
    let rest = "[signals.memory]\nmoderate = \"never\"\nhigh = \"never\"\nemergency = { enter = 2, exit = 1 }\n\
                [signals.age]\nsource = \"file\"\npath = \"/nonexistent/age\"\nscope = \"port:8080\"\n\
                high = { enter = 2, exit = 1 }\n[[port]]\nport = 8080\nrate = \"100/s\"\n";
    let daemon = Daemon::start(&net, &Setup { mode: "observe", via: "auto", rest });
    let metrics = get(&net, "/metrics").1;
    for series in [
        "shedder_level{scope=\"host\"} 0",
        "shedder_level_held_seconds{scope=\"host\"} ",
        "shedder_level_transitions_total{scope=\"host\",from=\"normal\",to=\"emergency\",signal=\"memory\"} 0",
        "shedder_level_transitions_total{scope=\"host\",from=\"normal\",to=\"high\",signal=\"operator\"} 0",
        "shedder_level_transitions_total{scope=\"port:8080\",from=\"normal\",to=\"high\",signal=\"age\"} 0",
        "shedder_signal_value{signal=\"memory\",scope=\"host\"} 0.",
        "shedder_signal_up{signal=\"memory\",scope=\"host\"} 1",
        "shedder_signal_enter_threshold{signal=\"memory\",scope=\"host\",level=\"emergency\"} 2",
        "shedder_signal_exit_threshold{signal=\"memory\",scope=\"host\",level=\"emergency\"} 1",
        "shedder_signal_read_errors_total{signal=\"memory\",scope=\"host\"} 0",
        "shedder_signal_value{signal=\"age\",scope=\"port:8080\"} NaN",
        "shedder_signal_up{signal=\"age\",scope=\"port:8080\"} 0",
        "shedder_quota_rate_per_second{port=\"8080\",class=\"batch\"} ",
        "shedder_quota_connections{port=\"8080\",class=\"core\"} +Inf",
    ] {
        assert!(metrics.lines().any(|line| line.starts_with(series)), "{series} is missing in:\n{metrics}");
    }
    drop(daemon);
}

#[test]
fn the_level_file_goes_with_the_daemon() {
    let (_net, mut daemon) = start();
    let level_file = daemon.directory.path().join("level");
    assert!(level_file.exists());
    assert_eq!(daemon.stop(rustix::process::Signal::TERM), Some(0));
    assert!(!level_file.exists());
    let output = daemon.verb(&["explain"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("no daemon answers"), "{output:?}");
}

#[test]
fn a_lost_directory_comes_back_with_socket_and_level_file() {
    let net = Net::new();
    let run = tempfile::tempdir().unwrap();
    let directory = run.path().join("shedder");
    let socket = directory.join("control.sock");
    let config = format!(
        "version = 1\nmode = \"observe\"\n[attach]\ninterfaces = [\"lo\"]\n[metrics]\nlisten = \"off\"\n\
         [daemon]\nbpffs = \"{{bpffs}}\"\nsocket = \"{}\"\n[[port]]\nport = 8080\n",
        socket.display()
    );
    let daemon = Daemon::launch_with(&net.server, &config);
    let answers = || shedder(&["mode", "observe", "--socket", socket.to_str().unwrap()]).code == Some(0);
    eventually("the daemon answers", answers);
    fs::remove_dir_all(&directory).unwrap();
    eventually("it answers again", answers);
    eventually("the level is there again", || directory.join("level").exists());
    assert!(daemon.log().contains("was gone and is made again"), "{}", daemon.log());
}

#[test]
fn a_port_without_a_policy_is_wrong_use() {
    let (_net, daemon) = start();
    let output = daemon.verb(&["explain", "9"]);
    assert_eq!(output.status.code(), Some(2));
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(message.contains("no policy covers port 9") && message.contains("8080"), "{message}");
}
