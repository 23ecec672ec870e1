//! `freeway serve --demo`: two scripted upstreams inside the process, so that everything can be tried without any key.
//!
//! They are ordinary providers to the gateway: files in a folder of their own, called over loopback. That folder and
//! the demo's data are gone when it ends, and the owner's own are not touched.
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use mock_upstream::{FOREVER, MockOptions, MockUpstream, Step};
use serde_json::{Value, json};

use crate::base::text::fresh_id;
use crate::catalog::boxfile;
use crate::catalog::env::Variables;

/// A running demo; dropping it ends the upstreams and removes its folder.
pub struct Demo {
    folder: PathBuf,
    _upstreams: [MockUpstream; 2],
}

/// Time to an answer, so that a stream can be seen streaming.
const LATENCY_MS: u64 = 15;

impl Demo {
    /// Starts the upstreams and points the gateway's variables at their files.
    pub fn start(process: &mut Variables) -> io::Result<Demo> {
        let folder = std::env::temp_dir().join(fresh_id("freeway-demo-"));
        boxfile::make_folder(&folder.join("providers"))?;
        let upstreams = [upstream("alpha")?, upstream("beta")?];
        // The model behind `shaky` fails at the first provider, so that a failover can be watched.
        let broken = Step {
            repeat: FOREVER,
            ..Step::error(503, "the demo's shaky model is always overloaded at alpha")
        };
        upstreams[0].set_by_model([("alpha-shaky", vec![broken])]);
        for (priority, upstream) in (10..).step_by(10).zip(&upstreams) {
            write_provider(&folder, upstream, priority)?;
        }
        let place = |name: &str| folder.join(name).to_string_lossy().into_owned();
        process.insert("FREEWAY_PROVIDERS".into(), place("providers"));
        process.insert("FREEWAY_DATA".into(), place("data"));
        // The owner's own backups are neither restored nor pushed out by those of a demo.
        process.insert("FREEWAY_BACKUP_TARGET".into(), place("backups"));
        process.insert("FREEWAY_BACKUP_KEY".into(), fresh_id("the key of a demo "));
        Ok(Demo { folder, _upstreams: upstreams })
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        // What cannot be removed now, the system removes with its other temporary files.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn upstream(name: &str) -> io::Result<MockUpstream> {
    let models = ["fast", "big", "shaky", "embed"].map(|kind| format!("{name}-{kind}")).to_vec();
    MockUpstream::start(MockOptions {
        name: name.into(),
        latency_ms: LATENCY_MS,
        models,
        ..MockOptions::default()
    })
}

fn write_provider(folder: &Path, upstream: &MockUpstream, priority: u32) -> io::Result<()> {
    let name = upstream.name();
    let chat = |kind: &str, context: u32| -> Value {
        json!({"id": format!("{name}-{kind}"), "alias": [kind], "context": context, "caps": ["chat", "tools", "json"]})
    };
    let file = json!({
        "id": name,
        "label": format!("Demo {name}"),
        "baseUrl": upstream.url(),
        "priority": priority,
        "auth": {"type": "none"},
        "billing": "free",
        "limits": {"rpm": 600},
        "limitsSource": "docs",
        "notes": "A scripted upstream inside the gateway's own process.",
        "models": [
            chat("fast", 32_768),
            chat("big", 131_072),
            {"id": format!("{name}-shaky"), "alias": ["shaky"], "context": 32_768, "caps": ["chat"], "priority": 90},
            {"id": format!("{name}-embed"), "alias": ["embed"], "context": 8_192, "caps": ["embed"], "dimensions": 8},
        ],
    });
    let path = folder.join("providers").join(format!("{name}.json"));
    fs::write(path, format!("{file:#}\n"))
}
