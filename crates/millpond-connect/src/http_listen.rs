//! The connector `http-listen`: rows that others send by POST.
//!
//! ```text
//! POST /orders    {"id": 1}↵{"id": 2}     ─▶  checked ─▶ replay log, fsync ─▶  200 {"accepted":2,"rejected":0}
//! ```
//!
//! A request is taken whole or not at all, and answered once it is durable: from then on each of its
//! rows counts exactly once, whatever is killed. It is checked before, so that a bad row is the
//! sender's error (400, with line and column) and never the job's; with `bad-rows` other than `fail`
//! bad rows are counted instead. A request that is sent again under the same `Idempotency-Key` is
//! answered and not taken again. Without a data directory nothing is durable.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::future::IntoFuture;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arrow::datatypes::SchemaRef;
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use millpond_core::limits::RECORD_BYTES_MAX;
use millpond_core::{ChangelogMode, Error, Result};
use tokio::sync::{Semaphore, oneshot};

use crate::connector::{
    ConnectorTable, Position, ReaderContext, SourceConnector, SourcePoll, Split, SplitReader,
};
use crate::factory::TableSpec;
use crate::logged::{LoggedReader, Texts, parts_of, record_of};
use crate::options::Options;
use crate::replay_log::ReplayLog;

/// The connector's own options.
pub(crate) const OPTIONS: &[&str] = &["address", "path", "max-unread"];
const SPLIT: &str = "http";

/// Bytes that the job has not read yet; above that senders are asked to wait.
const UNREAD_BYTES_DEFAULT: u64 = 256 << 20;
/// Requests that are read and checked at a time; further senders are asked to wait.
const REQUESTS_MAX: usize = 32;
/// How long a sender may take for its request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// How long requests under way are waited for when the last job that listens ends.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
/// Names of requests that are remembered, so that they are not taken twice.
const NAMES_MAX: usize = 100_000;

/// A table that others send rows to.
pub(crate) fn open(spec: &TableSpec, options: &mut Options) -> Result<ConnectorTable> {
    let address = options.require("address")?;
    let parsed = address.parse::<SocketAddr>().map_err(|_| {
        Error::invalid(format!("option 'address' of table {:?}: {address:?} is no address", spec.name))
            .with_hint("give IP and port, as in '127.0.0.1:8080'")
    })?;
    let path = options.text("path").unwrap_or_else(|| format!("/{}", spec.name));
    if !path.starts_with('/') {
        return Err(Error::invalid(format!("option 'path' of table {:?} begins with '/'", spec.name)));
    }
    let unread_max = options.size("max-unread")?.unwrap_or(UNREAD_BYTES_DEFAULT);
    let texts = Texts::take(spec, options, "http-listen")?;
    let source = HttpListen { texts, address: parsed, path, unread_max };
    Ok(ConnectorTable { source: Some(Arc::new(source)), ..ConnectorTable::default() })
}

#[derive(Debug)]
struct HttpListen {
    texts: Texts,
    address: SocketAddr,
    path: String,
    unread_max: u64,
}

impl SourceConnector for HttpListen {
    fn schema(&self) -> SchemaRef {
        self.texts.schema()
    }
    fn is_bounded(&self) -> bool {
        false
    }
    fn mode(&self) -> ChangelogMode {
        self.texts.mode()
    }
    fn splits(&self) -> Result<Vec<Split>> {
        Ok(vec![Split { id: SPLIT.into() }])
    }
    fn discovery_interval(&self) -> Option<i64> {
        None
    }
    fn open(
        &self,
        _: &Split,
        position: Option<&Position>,
        context: ReaderContext,
    ) -> Result<Box<dyn SplitReader>> {
        let log = ReplayLog::open(context.log_dir.as_deref())?;
        let mut names = Names::default();
        log.each(|record| names.remember(parts_of(record).0))?;
        let inbox = Inbox {
            texts: self.texts.clone(),
            context: context.clone(),
            log: Arc::clone(&log),
            unread_max: self.unread_max,
            names: Mutex::new(names),
        };
        let rows = self.texts.read_log(&log, position, context)?;
        let listening = Listening::begin(self.address, &self.path, inbox)?;
        Ok(Box::new(HttpReader { rows, _listening: listening }))
    }
    fn release(&self, log: Option<&std::path::Path>, positions: &[Position]) -> Result<()> {
        crate::stdin::release(log, positions)
    }
}

/// Reads what was sent, and listens while it is there.
struct HttpReader {
    rows: LoggedReader,
    _listening: Listening,
}

impl SplitReader for HttpReader {
    fn poll(&mut self, rows_max: usize) -> Result<SourcePoll> {
        self.rows.poll(rows_max)
    }
    fn position(&self) -> Position {
        self.rows.position()
    }
}

/// Where the requests of one table go.
#[derive(Debug)]
struct Inbox {
    texts: Texts,
    context: ReaderContext,
    log: Arc<ReplayLog>,
    unread_max: u64,
    names: Mutex<Names>,
}

/// The names of the last requests.
#[derive(Debug, Default)]
struct Names {
    known: HashSet<Vec<u8>>,
    order: VecDeque<Vec<u8>>,
    /// Requests that are being taken.
    under_way: HashSet<Vec<u8>>,
}

impl Names {
    fn remember(&mut self, name: &[u8]) {
        if name.is_empty() || !self.known.insert(name.to_vec()) {
            return;
        }
        self.order.push_back(name.to_vec());
        if self.order.len() > NAMES_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
    }
}

/// An answer: its status and its text.
type Answer = (StatusCode, serde_json::Value);

impl Inbox {
    /// Takes a request, or says why not.
    fn take(&self, name: &[u8], body: &[u8]) -> Answer {
        let name = &name[..name.len().min(usize::from(u8::MAX))];
        if !name.is_empty() {
            let mut names = self.names();
            if names.known.contains(name) {
                let known = serde_json::json!({ "accepted": 0, "rejected": 0, "known": true });
                return (StatusCode::OK, known);
            }
            if !names.under_way.insert(name.to_vec()) {
                let what = "the same request is being taken; send it again later";
                return (StatusCode::SERVICE_UNAVAILABLE, serde_json::json!({ "error": what }));
            }
        }
        let answer = self.take_new(name, body);
        if !name.is_empty() {
            let mut names = self.names();
            names.under_way.remove(name);
            if answer.0 == StatusCode::OK {
                names.remember(name);
            }
        }
        answer
    }

    fn names(&self) -> MutexGuard<'_, Names> {
        self.names.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_new(&self, name: &[u8], body: &[u8]) -> Answer {
        let refused = |status, error: &Error| {
            (status, serde_json::json!({ "error": error.message(), "hint": error.hint() }))
        };
        if self.log.unread() > self.unread_max {
            let what = "the job is behind; send it again later";
            return (StatusCode::SERVICE_UNAVAILABLE, serde_json::json!({ "error": what }));
        }
        let lines = if self.texts.is_json() { lines_of_array(body) } else { None };
        let text = lines.as_deref().unwrap_or(body);
        let checked = match self.texts.check("the request", text, &self.context) {
            Ok(checked) => checked,
            Err(error) => return refused(StatusCode::BAD_REQUEST, &error),
        };
        if checked.accepted + checked.rejected > 0
            && let Err(error) = self.log.append(&record_of(name, text))
        {
            tracing::warn!(%error, table = self.texts.table(), "a request cannot be taken");
            return refused(StatusCode::SERVICE_UNAVAILABLE, &error);
        }
        let counts = serde_json::json!({ "accepted": checked.accepted, "rejected": checked.rejected });
        (StatusCode::OK, counts)
    }
}

/// The elements of a JSON array as lines; `None` if the text is none.
fn lines_of_array(text: &[u8]) -> Option<Vec<u8>> {
    let trimmed = text.trim_ascii();
    let inside = trimmed.strip_prefix(b"[")?.strip_suffix(b"]")?;
    let (mut lines, mut depth, mut quoted, mut escaped) =
        (Vec::with_capacity(text.len()), 0i64, false, false);
    for byte in inside {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b'{' | b'[' if !quoted => depth += 1,
            b'}' | b']' if !quoted => depth -= 1,
            _ => {}
        }
        match byte {
            b',' if depth == 0 && !quoted => lines.push(b'\n'),
            b'\n' | b'\r' => lines.push(b' '),
            other => lines.push(*other),
        }
    }
    Some(lines)
}

/// The addresses that are listened at, with the tables behind them.
static SERVERS: Mutex<BTreeMap<SocketAddr, Server>> = Mutex::new(BTreeMap::new());

#[derive(Debug)]
struct Server {
    routes: Arc<Mutex<Routes>>,
    stop: oneshot::Sender<()>,
    thread: std::thread::JoinHandle<()>,
}

impl Server {
    /// Accepts no more connections, lets requests under way end for a while, and waits until the
    /// address is free again.
    fn end(self) {
        // The other side is gone when listening has ended with an error, which was logged.
        let _ = self.stop.send(());
        if self.thread.join().is_err() {
            tracing::warn!("a thread that listened for requests has panicked");
        }
    }
}

/// The tables of a server, by path.
type Routes = HashMap<String, Arc<Inbox>>;

fn servers() -> MutexGuard<'static, BTreeMap<SocketAddr, Server>> {
    SERVERS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn routes(routes: &Mutex<Routes>) -> MutexGuard<'_, Routes> {
    routes.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A table is listened for until this is dropped.
struct Listening {
    address: SocketAddr,
    path: String,
}

impl Listening {
    fn begin(address: SocketAddr, path: &str, inbox: Inbox) -> Result<Self> {
        let mut servers = servers();
        let server = match servers.entry(address) {
            Entry::Occupied(server) => server.into_mut(),
            Entry::Vacant(place) => place.insert(serve(address)?),
        };
        let mut routes = routes(&server.routes);
        if routes.contains_key(path) {
            return Err(Error::invalid(format!("http://{address}{path} is listened at already"))
                .with_detail("another job reads that table")
                .with_hint("stop that job, or put both into one STATEMENT SET"));
        }
        routes.insert(path.into(), Arc::new(inbox));
        Ok(Self { address, path: path.into() })
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        let mut servers = servers();
        let Some(server) = servers.get(&self.address) else { return };
        let is_idle = {
            let mut routes = routes(&server.routes);
            routes.remove(&self.path);
            routes.is_empty()
        };
        // Under the lock: who listens here next finds the address free.
        if is_idle && let Some(server) = servers.remove(&self.address) {
            server.end();
        }
    }
}

/// Listens at an address, on a thread of its own.
fn serve(address: SocketAddr) -> Result<Server> {
    let failed = |error: std::io::Error| Error::io(format!("listen at {address}"), &error);
    let listener = std::net::TcpListener::bind(address).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("http-listen")
        .enable_all()
        .build()
        .map_err(failed)?;
    let routes = Arc::new(Mutex::new(Routes::new()));
    let router = Router::new().fallback(receive).with_state(Arc::clone(&routes));
    let (stop, stopped) = oneshot::channel::<()>();
    let run = move || {
        runtime.block_on(async {
            let listener = match tokio::net::TcpListener::from_std(listener) {
                Ok(listener) => listener,
                Err(error) => return tracing::warn!(%error, %address, "cannot listen"),
            };
            let (until, is_over) = oneshot::channel::<()>();
            let stopping = async {
                drop(stopped.await);
                drop(until);
            };
            let serving = axum::serve(listener, router).with_graceful_shutdown(stopping).into_future();
            let too_late = async {
                drop(is_over.await);
                tokio::time::sleep(DRAIN_TIMEOUT).await;
            };
            tokio::select! {
                served = serving => {
                    if let Err(error) = served {
                        tracing::warn!(%error, %address, "listening has ended");
                    }
                }
                () = too_late => tracing::warn!(%address, "requests under way are cut off"),
            }
        });
        runtime.shutdown_timeout(DRAIN_TIMEOUT);
    };
    let thread = std::thread::Builder::new().name("http-listen".into()).spawn(run).map_err(failed)?;
    Ok(Server { routes, stop, thread })
}

async fn receive(State(tables): State<Arc<Mutex<Routes>>>, request: Request) -> Response {
    let inbox = routes(&tables).get(request.uri().path()).cloned();
    let Some(inbox) = inbox else {
        return answer((StatusCode::NOT_FOUND, serde_json::json!({ "error": "no table is here" })));
    };
    if request.method() != Method::POST {
        let what = format!("send rows of table {} by POST", inbox.texts.table());
        return answer((StatusCode::METHOD_NOT_ALLOWED, serde_json::json!({ "error": what })));
    }
    static UNDER_WAY: Semaphore = Semaphore::const_new(REQUESTS_MAX);
    let Ok(_permit) = UNDER_WAY.try_acquire() else {
        let what = "too many requests at a time; send it again later";
        return answer((StatusCode::SERVICE_UNAVAILABLE, serde_json::json!({ "error": what })));
    };
    let name = request.headers().get("idempotency-key").map(|name| name.as_bytes().to_vec());
    let body: Body = request.into_body();
    let body = match tokio::time::timeout(REQUEST_TIMEOUT, to_bytes(body, RECORD_BYTES_MAX)).await {
        Ok(Ok(body)) => body,
        Err(_) => {
            let what = format!("a request takes at most {} s", REQUEST_TIMEOUT.as_secs());
            return answer((StatusCode::REQUEST_TIMEOUT, serde_json::json!({ "error": what })));
        }
        Ok(Err(error)) => {
            let what = format!("a request has at most {RECORD_BYTES_MAX} bytes: {error}");
            return answer((StatusCode::PAYLOAD_TOO_LARGE, serde_json::json!({ "error": what })));
        }
    };
    let taken = tokio::task::spawn_blocking(move || inbox.take(&name.unwrap_or_default(), &body)).await;
    let lost =
        |_| (StatusCode::INTERNAL_SERVER_ERROR, serde_json::json!({ "error": "the request was lost" }));
    answer(taken.unwrap_or_else(lost))
}

fn answer((status, text): Answer) -> Response {
    let kind = (header::CONTENT_TYPE, "application/json");
    let text = format!("{text}\n");
    match status {
        StatusCode::SERVICE_UNAVAILABLE => (status, [kind, (header::RETRY_AFTER, "1")], text).into_response(),
        _ => (status, [kind], text).into_response(),
    }
}

#[cfg(test)]
mod tests;
