//! Annotated handlers behind the servers and macros that they are written for, called over loopback as a client
//! calls them. Each is under its lock while its body runs, refuses a second request in its own words, and leaves no
//! key.

use std::fmt::Debug;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;

use lock_runtime::{Lease, LockError, LockManager, redis_lock};
use tests::server::RedisServer;
use tests::{PATIENCE, clock};
use tokio::sync::{Mutex, Semaphore, mpsc};

/// What the handlers share: their locks, and a body's work, which begins and ends where the test can see it.
#[derive(Clone)]
struct Shop {
    locks: LockManager,
    begun: mpsc::UnboundedSender<Option<Begun>>,
    end: Arc<Semaphore>,
}

/// What a body that has begun knows of its lock.
struct Begun {
    key: String,
    token: String,
}

impl Shop {
    /// Tells the test which lock the body has, and works until the test lets it end.
    async fn work(&self, lock: &Lease) {
        self.play(Some(Begun { key: lock.key().to_owned(), token: lock.token().to_owned() })).await;
    }

    /// The same in a body that does not know.
    async fn work_unaware(&self) {
        self.play(None).await;
    }

    async fn play(&self, begun: Option<Begun>) {
        self.begun.send(begun).ok();
        if let Ok(permit) = self.end.acquire().await {
            permit.forget();
        }
    }
}

/// A Redis server, a shop that keeps its locks there, and the view of both from outside.
struct Scene {
    redis: RedisServer,
    shop: Shop,
    begun: Mutex<mpsc::UnboundedReceiver<Option<Begun>>>,
}

impl Scene {
    async fn set() -> Self {
        let redis = RedisServer::start().await;
        // As patient as the test: how soon a call gives up is another test's question.
        let builder = LockManager::builder().response_timeout(PATIENCE).connect_timeout(PATIENCE);
        let locks = builder.connect(&redis.url()).await.unwrap();
        let (sender, begun) = mpsc::unbounded_channel();
        let shop = Shop { locks, begun: sender, end: Arc::new(Semaphore::new(0)) };
        Self { redis, shop, begun: Mutex::new(begun) }
    }

    /// Calls twice at once what locks `key`.
    async fn assert_locks<F>(&self, key: &str, done: F::Output, busy: F::Output, call: impl Fn() -> F)
    where
        F: Future<Output: Debug + PartialEq>,
    {
        let play = async {
            let mut first = pin!(call());
            let token = self.body_begins(key, first.as_mut()).await;
            assert_eq!(call().await, busy, "a second call is refused as the handler says");
            assert_eq!(self.redis.get(key).await, Some(token), "and leaves the lock as it is");
            self.shop.end.add_permits(1);
            assert_eq!(first.await, done);
            assert!(!self.redis.exists(key).await, "{key} is gone when the answer is there");
        };
        clock::timeout(PATIENCE, play).await.expect("the two calls end in time");
    }

    /// Drives a call until its body runs; the token that stands in Redis then.
    async fn body_begins<F: Future<Output: Debug>>(&self, key: &str, mut call: Pin<&mut F>) -> String {
        let mut begun = self.begun.lock().await;
        let begun = tokio::select! {
            begun = begun.recv() => begun.expect("the shop is there as long as the scene"),
            early = &mut call => panic!("answered {early:?} before its body began"),
        };
        let token = self.redis.get(key).await;
        let token = token.unwrap_or_else(|| panic!("the body runs, and {key} is not in Redis"));
        if let Some(known) = begun {
            assert_eq!((&*known.key, &known.token), (key, &token));
        }
        token
    }
}

/// The error of the web handlers: what an application would write.
#[derive(Debug, thiserror::Error)]
#[error("{} is in progress", .0.key().unwrap_or_default())]
struct AppError(#[from] LockError);

impl AppError {
    fn status(&self) -> u16 {
        if self.0.is_busy() { 409 } else { 503 }
    }
}

/// An answer over HTTP: status and body.
type Answer = (u16, String);

fn ok(body: &str) -> Answer {
    (200, body.to_owned())
}

fn conflict(key: &str) -> Answer {
    (409, format!("{key} is in progress"))
}

/// Sends a request over a connection of its own, which is closed when the future is dropped.
async fn send(server: SocketAddr, method: &str, path: &str, json: &str) -> Answer {
    let stream = tokio::net::TcpStream::connect(server).await.expect("the server listens");
    let io = hyper_util::rt::TokioIo::new(stream);
    let (mut client, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
    let request = hyper::Request::builder()
        .method(method)
        .uri(path)
        .header("host", server.to_string())
        .header("content-type", "application/json")
        .body(json.to_owned())
        .unwrap();
    // On this task, so that the connection is dropped with the request.
    let mut connection = pin!(connection);
    let response = tokio::select! {
        response = client.send_request(request) => response,
        ended = &mut connection => panic!("the connection ended before the answer: {ended:?}"),
    };
    let response = response.expect("the server answers");
    let status = response.status().as_u16();
    let body = axum::body::to_bytes(axum::body::Body::new(response.into_body()), usize::MAX);
    // The end of a connection may be the end of a body; without a client there is no second request to wait for.
    drop(client);
    let (body, _) = tokio::join!(body, connection);
    (status, String::from_utf8(body.unwrap().into()).unwrap())
}

mod axum_handlers {
    use super::*;
    use axum::extract::{Path, State};
    use axum::response::{IntoResponse, Response};
    use axum::routing::{get, post};
    use axum::{Json, Router};

    impl IntoResponse for AppError {
        fn into_response(self) -> Response {
            let status = axum::http::StatusCode::from_u16(self.status()).expect("409 and 503 are statuses");
            (status, self.to_string()).into_response()
        }
    }

    #[redis_lock(key = "order:<order_id>", ttl = "30s", manager = shop.locks, guard = lock)]
    async fn pay(State(shop): State<Shop>, Path(order_id): Path<u64>) -> Result<Json<u64>, AppError> {
        shop.work(lock).await;
        Ok(Json(order_id))
    }

    #[axum::debug_handler(state = Shop)]
    #[redis_lock(key = "ship:<order_id>:<lines.len()>", ttl = "30s", manager = shop.locks)]
    async fn debug_above(
        State(shop): State<Shop>,
        Path((order_id, carrier)): Path<(u64, String)>,
        Json(lines): Json<Vec<u64>>,
    ) -> Result<String, AppError> {
        // Above, `debug_handler` reads a copy of the body in which there is no `guard`.
        shop.work_unaware().await;
        Ok(format!("{carrier} takes {lines:?} of {order_id}"))
    }

    #[redis_lock(key = "cancel:<order_id>", ttl = "30s", manager = shop.locks, guard = lock)]
    #[axum::debug_handler]
    async fn debug_below(
        State(shop): State<Shop>,
        Path(order_id): Path<u64>,
    ) -> Result<impl IntoResponse, AppError> {
        shop.work(lock).await;
        Ok(format!("cancelled {order_id}"))
    }

    #[redis_lock(
        key = "report:<day>",
        ttl = "30s",
        manager = shop.locks,
        guard = lock,
        or_else = |error| AppError(error).into_response()
    )]
    async fn report(State(shop): State<Shop>, Path(day): Path<String>) -> Response {
        shop.work(lock).await;
        day.into_response()
    }

    async fn serve(shop: &Shop) -> SocketAddr {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let routes = Router::new()
            .route("/orders/{order_id}/pay", post(pay))
            .route("/orders/{order_id}/ship/{carrier}", post(debug_above))
            .route("/orders/{order_id}", axum::routing::delete(debug_below))
            .route("/reports/{day}", get(report))
            .with_state(shop.clone());
        // Ends with the test's runtime.
        tokio::spawn(async move { axum::serve(listener, routes).await });
        address
    }

    #[tokio::test]
    async fn destructured_parameters_are_in_the_key() {
        let scene = Scene::set().await;
        let server = serve(&scene.shop).await;
        let pay = || send(server, "POST", "/orders/7/pay", "");
        scene.assert_locks("lock:order:7", ok("7"), conflict("lock:order:7"), pay).await;
    }

    #[tokio::test]
    async fn debug_handler_stands_above_or_below() {
        let scene = Scene::set().await;
        let server = serve(&scene.shop).await;
        let ship = || send(server, "POST", "/orders/7/ship/dhl", "[1, 2]");
        let key = "lock:ship:7:2";
        scene.assert_locks(key, ok("dhl takes [1, 2] of 7"), conflict(key), ship).await;
        let cancel = || send(server, "DELETE", "/orders/7", "");
        let key = "lock:cancel:7";
        scene.assert_locks(key, ok("cancelled 7"), conflict(key), cancel).await;
    }

    #[tokio::test]
    async fn or_else_answers_for_a_response_of_any_kind() {
        let scene = Scene::set().await;
        let server = serve(&scene.shop).await;
        let report = || send(server, "GET", "/reports/2025-11-29%20a%3Ab", "");
        let key = "lock:report:2025-11-29%20a%3Ab";
        scene.assert_locks(key, ok("2025-11-29 a:b"), conflict(key), report).await;
    }

    /// The server drops the handler of a client that has gone.
    #[tokio::test]
    async fn a_client_that_hangs_up_leaves_no_lock() {
        let scene = Scene::set().await;
        let server = serve(&scene.shop).await;
        {
            let mut call = pin!(send(server, "POST", "/orders/7/pay", ""));
            let begun = scene.body_begins("lock:order:7", call.as_mut());
            clock::timeout(PATIENCE, begun).await.expect("the body begins");
        }
        tests::eventually("the key is gone", PATIENCE, async || !scene.redis.exists("lock:order:7").await)
            .await;
    }
}

mod actix_handlers {
    use super::*;
    use actix_web::{App, HttpServer, ResponseError, get, http::StatusCode, post, web};
    use std::rc::Rc;

    impl ResponseError for AppError {
        fn status_code(&self) -> StatusCode {
            StatusCode::from_u16(self.status()).expect("409 and 503 are statuses")
        }
    }

    #[post("/orders/{order_id}/pay")]
    #[redis_lock(key = "order:<order_id>", ttl = "30s", manager = shop.locks, guard = lock)]
    async fn route_above(
        order_id: web::Path<u64>,
        web::Json(amount): web::Json<u64>,
        shop: web::Data<Shop>,
    ) -> Result<String, AppError> {
        shop.work(lock).await;
        Ok(format!("paid {amount} for {order_id}"))
    }

    #[redis_lock(key = "stock:<sku.0>:<sku.1>", ttl = "30s", manager = shop.locks, guard = lock)]
    #[actix_web::get("/stock/{warehouse}/{sku}")]
    async fn route_below(sku: web::Path<(String, u32)>, shop: web::Data<Shop>) -> Result<String, AppError> {
        shop.work(lock).await;
        Ok(format!("{} in {}", sku.1, sku.0))
    }

    #[get("/reports/{day}")]
    #[redis_lock(
        key = "report:<day>",
        ttl = "30s",
        manager = shop.locks,
        guard = lock,
        or_else = |error| AppError(error).error_response()
    )]
    async fn report(day: web::Path<String>, shop: web::Data<Shop>) -> actix_web::HttpResponse {
        shop.work(lock).await;
        actix_web::HttpResponse::Ok().body(day.into_inner())
    }

    /// Registered by hand, with amounts from the body; what it holds is not `Send`, and need not be here.
    #[redis_lock(key = "refund:<order_id>:<amount>", ttl = "30s", manager = shop.locks, guard = lock)]
    async fn refund(
        shop: web::Data<Shop>,
        order_id: web::Path<u64>,
        web::Json(amount): web::Json<u64>,
    ) -> Result<String, AppError> {
        let receipt = Rc::new(format!("refunded {amount} for {order_id}"));
        shop.work(lock).await;
        Ok(String::clone(&receipt))
    }

    struct Serving {
        address: SocketAddr,
        handle: actix_web::dev::ServerHandle,
        task: tokio::task::JoinHandle<std::io::Result<()>>,
    }

    /// Two workers, each a thread with a runtime of its own, so that the second call may meet another one.
    fn serve(shop: &Shop) -> Serving {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let shop = web::Data::new(shop.clone());
        let app = move || {
            App::new()
                .app_data(shop.clone())
                .service(route_above)
                .service(route_below)
                .service(report)
                .route("/orders/{order_id}/refund", web::post().to(refund))
        };
        let server = HttpServer::new(app).workers(2).disable_signals().listen(listener).unwrap().run();
        Serving { address, handle: server.handle(), task: tokio::spawn(server) }
    }

    impl Serving {
        async fn stop(self) {
            self.handle.stop(false).await;
            self.task.await.unwrap().unwrap();
        }
    }

    #[tokio::test]
    async fn a_route_stands_above_or_below() {
        let scene = Scene::set().await;
        let server = serve(&scene.shop);
        let pay = || send(server.address, "POST", "/orders/7/pay", "250");
        let key = "lock:order:7";
        scene.assert_locks(key, ok("paid 250 for 7"), conflict(key), pay).await;
        let stock = || send(server.address, "GET", "/stock/%E4%B8%8A%E6%B5%B7/12", "");
        let key = "lock:stock:上海:12";
        scene.assert_locks(key, ok("12 in 上海"), conflict(key), stock).await;
        server.stop().await;
    }

    #[tokio::test]
    async fn destructured_parameters_are_in_the_key() {
        let scene = Scene::set().await;
        let server = serve(&scene.shop);
        let refund = || send(server.address, "POST", "/orders/7/refund", "250");
        let key = "lock:refund:7:250";
        scene.assert_locks(key, ok("refunded 250 for 7"), conflict(key), refund).await;
        server.stop().await;
    }

    #[tokio::test]
    async fn or_else_answers_for_a_response_of_any_kind() {
        let scene = Scene::set().await;
        let server = serve(&scene.shop);
        let get = || send(server.address, "GET", "/reports/monday", "");
        let key = "lock:report:monday";
        scene.assert_locks(key, ok("monday"), conflict(key), get).await;
        server.stop().await;
    }
}

mod tonic_service {
    use super::*;
    use std::convert::Infallible;
    use std::task::{Context, Poll};

    use bytes::{Buf, BufMut};
    use tonic::body::Body;
    use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
    use tonic::codegen::{BoxFuture, Service, http};
    use tonic::transport::{Channel, Endpoint, Server, server::TcpIncoming};
    use tonic::{Code, Request, Response, Status};

    #[tonic::async_trait]
    trait Orders: Send + Sync + 'static {
        async fn pay(&self, request: Request<u64>) -> Result<Response<u64>, Status>;
    }

    #[tonic::async_trait]
    impl Orders for Shop {
        #[redis_lock(
            key = "order:<request.get_ref()>",
            ttl = "30s",
            manager = self.locks,
            guard = lock,
            or_else = |error| Err(refused(&error))
        )]
        async fn pay(&self, request: Request<u64>) -> Result<Response<u64>, Status> {
            self.work(lock).await;
            if request.get_ref() == &0 {
                return Err(Status::not_found("there is no order 0"));
            }
            Ok(Response::new(request.into_inner() + 100))
        }
    }

    fn refused(error: &LockError) -> Status {
        let key = error.key().unwrap_or_default();
        if error.is_busy() {
            Status::aborted(format!("{key} is in progress"))
        } else {
            Status::unavailable(key)
        }
    }

    async fn call(channel: &Channel, order_id: u64) -> Result<u64, (Code, String)> {
        let mut client = tonic::client::Grpc::new(channel.clone());
        client.ready().await.expect("the server listens");
        let path = http::uri::PathAndQuery::from_static("/shop.Orders/Pay");
        let answer = client.unary(Request::new(order_id), path, Number).await;
        answer.map(Response::into_inner).map_err(|status| (status.code(), status.message().to_owned()))
    }

    #[tokio::test]
    async fn or_else_answers_with_a_status() {
        let scene = Scene::set().await;
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let orders = OrdersServer(Arc::new(scene.shop.clone()));
        // Ends with the test's runtime.
        tokio::spawn(Server::builder().add_service(orders).serve_with_incoming(TcpIncoming::from(listener)));
        let channel = Endpoint::new(format!("http://{address}")).unwrap().connect().await.unwrap();

        let busy = |key: &str| Err((Code::Aborted, format!("{key} is in progress")));
        scene.assert_locks("lock:order:7", Ok(107), busy("lock:order:7"), || call(&channel, 7)).await;
        let none = Err((Code::NotFound, "there is no order 0".to_owned()));
        scene.assert_locks("lock:order:0", none, busy("lock:order:0"), || call(&channel, 0)).await;
    }

    /// What tonic's build script makes of a service of one method, less what this test has no use for.
    struct OrdersServer<T>(Arc<T>);

    impl<T> Clone for OrdersServer<T> {
        fn clone(&self) -> Self {
            Self(Arc::clone(&self.0))
        }
    }

    impl<T: Orders> Service<http::Request<Body>> for OrdersServer<T> {
        type Response = http::Response<Body>;
        type Error = Infallible;
        type Future = BoxFuture<Self::Response, Infallible>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, request: http::Request<Body>) -> Self::Future {
            let pay = Pay(Arc::clone(&self.0));
            Box::pin(async move { Ok(tonic::server::Grpc::new(Number).unary(pay, request).await) })
        }
    }

    impl<T> tonic::server::NamedService for OrdersServer<T> {
        const NAME: &'static str = "shop.Orders";
    }

    struct Pay<T>(Arc<T>);

    impl<T: Orders> tonic::server::UnaryService<u64> for Pay<T> {
        type Response = u64;
        type Future = BoxFuture<Response<u64>, Status>;

        fn call(&mut self, request: Request<u64>) -> Self::Future {
            let orders = Arc::clone(&self.0);
            Box::pin(async move { orders.pay(request).await })
        }
    }

    /// Messages that are one number, so that no compiler of protocol buffers is needed.
    struct Number;

    impl Codec for Number {
        type Encode = u64;
        type Decode = u64;
        type Encoder = Self;
        type Decoder = Self;

        fn encoder(&mut self) -> Self {
            Self
        }

        fn decoder(&mut self) -> Self {
            Self
        }
    }

    impl Encoder for Number {
        type Item = u64;
        type Error = Status;

        fn encode(&mut self, number: u64, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
            into.put_u64(number);
            Ok(())
        }
    }

    impl Decoder for Number {
        type Item = u64;
        type Error = Status;

        fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<u64>, Status> {
            from.try_get_u64().map(Some).map_err(|_| Status::invalid_argument("no number"))
        }
    }
}

mod async_trait_methods {
    use super::*;
    use std::rc::Rc;

    type Outcome = Result<String, String>;

    #[derive(Debug)]
    struct Refused(String);

    impl From<LockError> for Refused {
        fn from(error: LockError) -> Self {
            Self(format!("{} is in progress", error.key().unwrap_or_default()))
        }
    }

    fn busy(key: &str) -> Outcome {
        Err(format!("{key} is in progress"))
    }

    #[async_trait::async_trait]
    trait Jobs {
        fn shop(&self) -> &Shop;

        async fn implemented(&self, day: u32, region: &str) -> Result<String, Refused>;

        #[redis_lock(key = "default:<day>", ttl = "30s", manager = self.shop().locks, guard = lock)]
        async fn by_default(&self, day: u32) -> Result<String, Refused>
        where
            Self: Sync,
        {
            self.shop().work(lock).await;
            Ok(format!("by default {day}"))
        }
    }

    #[async_trait::async_trait]
    impl Jobs for Shop {
        fn shop(&self) -> &Shop {
            self
        }

        #[redis_lock(key = "implemented:<region>:<day>", ttl = "30s", manager = self.locks, guard = lock)]
        async fn implemented(&self, day: u32, region: &str) -> Result<String, Refused> {
            self.work(lock).await;
            Ok(format!("implemented {day} {region}"))
        }
    }

    #[tokio::test]
    async fn futures_that_are_send() {
        fn assert_send<F: Future + Send>(future: F) -> F {
            future
        }
        let scene = Scene::set().await;
        let jobs: &(dyn Jobs + Sync) = &scene.shop;
        let implemented =
            || assert_send(async { jobs.implemented(3, "eu").await.map_err(|refused| refused.0) });
        let key = "lock:implemented:eu:3";
        scene.assert_locks(key, Ok("implemented 3 eu".to_owned()), busy(key), implemented).await;
        // A method with `where Self: Sync` cannot be called on a trait object.
        let by_default =
            || assert_send(async { scene.shop.by_default(3).await.map_err(|refused| refused.0) });
        let key = "lock:default:3";
        scene.assert_locks(key, Ok("by default 3".to_owned()), busy(key), by_default).await;
    }

    #[async_trait::async_trait(?Send)]
    trait LocalJobs {
        fn shop(&self) -> &Shop;

        async fn implemented(&mut self, day: u32) -> Result<String, Refused>;

        #[redis_lock(key = "local-default:<day.len()>", ttl = "30s", manager = self.shop().locks, guard = lock)]
        async fn by_default(&self, day: Rc<str>) -> Result<String, Refused> {
            self.shop().work(lock).await;
            Ok(format!("by default {day}"))
        }
    }

    #[derive(Clone)]
    struct Local(Rc<Shop>);

    #[async_trait::async_trait(?Send)]
    impl LocalJobs for Local {
        fn shop(&self) -> &Shop {
            &self.0
        }

        #[redis_lock(key = "local:<day>", ttl = "30s", manager = self.0.locks, guard = lock)]
        async fn implemented(&mut self, day: u32) -> Result<String, Refused> {
            let shop = Rc::clone(&self.0);
            shop.work(lock).await;
            Ok(format!("implemented {day}"))
        }
    }

    #[tokio::test]
    async fn futures_that_are_not_send() {
        let scene = Scene::set().await;
        let local = Local(Rc::new(scene.shop.clone()));
        let implemented = || {
            let mut local: Box<dyn LocalJobs> = Box::new(local.clone());
            async move { local.implemented(3).await.map_err(|refused| refused.0) }
        };
        let key = "lock:local:3";
        scene.assert_locks(key, Ok("implemented 3".to_owned()), busy(key), implemented).await;
        let by_default = || async { local.by_default("monday".into()).await.map_err(|refused| refused.0) };
        let key = "lock:local-default:6";
        scene.assert_locks(key, Ok("by default monday".to_owned()), busy(key), by_default).await;
    }
}
