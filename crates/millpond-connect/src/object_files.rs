//! Files on an object store, for callers that block: S3, Google Cloud Storage, Azure.
//!
//! Requests run on threads of their own and are repeated for half a minute. Credentials come from
//! the environment, as with the vendors' own tools, unless they are given.

use std::future::Future;
use std::sync::{Arc, OnceLock, mpsc};
use std::time::Duration;

use bytes::Bytes;
use futures::TryStreamExt;
use millpond_core::{Error, Result};
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::path::Path;
use object_store::{
    MultipartUpload, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload, RetryConfig,
};

/// Larger files go up in parts of this size.
const PART_BYTES: usize = 16 << 20;

/// What the user sets of an S3 store; what is missing comes from the environment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct S3Options {
    /// `s3.endpoint`: a server other than Amazon's.
    pub endpoint: Option<String>,
    /// `s3.access-key`.
    pub access_key: Option<String>,
    /// `s3.secret-key`.
    pub secret_key: Option<String>,
    /// `s3.region`.
    pub region: Option<String>,
    /// `s3.path-style-access` = false: the bucket is part of the host's name, not of the path.
    pub bucket_in_host: bool,
}

/// A server's URL with the bucket in front of the host.
fn with_bucket(endpoint: &str, bucket: &str) -> String {
    match endpoint.split_once("://") {
        Some((scheme, host)) => format!("{scheme}://{bucket}.{host}"),
        None => format!("{bucket}.{endpoint}"),
    }
}

/// A folder on an object store.
#[derive(Debug)]
pub struct ObjectFiles {
    url: String,
    store: Arc<dyn ObjectStore>,
    prefix: Path,
}

/// Whether a place is on an object store.
pub fn is_object_store(place: &str) -> bool {
    place.split_once("://").is_some_and(|(scheme, _)| scheme != "file")
}

impl ObjectFiles {
    /// The folder at a URL; nothing is asked yet.
    ///
    /// Errors: *Invalid* for a URL or options that make no store.
    pub fn open(url: &str, s3: &S3Options) -> Result<Self> {
        let invalid = |error: object_store::Error| {
            Error::invalid(format!("{url:?} is no place on an object store: {error}"))
                .with_hint("write s3://bucket/folder, gs://bucket/folder or az://container/folder")
        };
        let (scheme, rest) = url.split_once("://").unwrap_or_default();
        let (bucket, folder) = rest.split_once('/').unwrap_or((rest, ""));
        let retry =
            RetryConfig { max_retries: 8, retry_timeout: Duration::from_secs(30), ..RetryConfig::default() };
        let store: Arc<dyn ObjectStore> = match scheme {
            "s3" | "s3a" => {
                let mut builder = AmazonS3Builder::from_env().with_bucket_name(bucket).with_retry(retry);
                builder = builder.with_virtual_hosted_style_request(s3.bucket_in_host);
                if let Some(endpoint) = &s3.endpoint {
                    let server = match s3.bucket_in_host {
                        true => with_bucket(endpoint, bucket),
                        false => endpoint.clone(),
                    };
                    builder = builder.with_endpoint(server).with_allow_http(endpoint.starts_with("http://"));
                }
                if let Some(key) = &s3.access_key {
                    builder = builder.with_access_key_id(key);
                }
                if let Some(key) = &s3.secret_key {
                    builder = builder.with_secret_access_key(key);
                }
                if let Some(region) = &s3.region {
                    builder = builder.with_region(region);
                }
                Arc::new(builder.build().map_err(invalid)?)
            }
            "gs" => Arc::new(
                GoogleCloudStorageBuilder::from_env()
                    .with_bucket_name(bucket)
                    .with_retry(retry)
                    .build()
                    .map_err(invalid)?,
            ),
            "az" | "abfs" | "abfss" => Arc::new(
                MicrosoftAzureBuilder::from_env()
                    .with_container_name(bucket.split('@').next().unwrap_or(bucket))
                    .with_retry(retry)
                    .build()
                    .map_err(invalid)?,
            ),
            other => {
                return Err(Error::invalid(format!("{url:?}: there is no object store {other:?}"))
                    .with_hint("write s3://, gs:// or az://"));
            }
        };
        let prefix = Path::parse(folder.trim_matches('/')).map_err(|error| invalid(error.into()))?;
        Ok(Self { url: url.trim_end_matches('/').into(), store, prefix })
    }

    #[cfg(test)]
    fn over(store: Arc<dyn ObjectStore>, folder: &str) -> Self {
        Self { url: format!("test://{folder}"), store, prefix: Path::from(folder) }
    }

    /// Where it is.
    pub fn url(&self) -> &str {
        &self.url
    }

    fn path(&self, name: &str) -> Path {
        Path::from_iter(self.prefix.parts().chain(Path::from(name).parts()))
    }

    fn failed(&self, what: &str, name: &str, error: &object_store::Error) -> Error {
        let what = format!("cannot {what} {}/{name}: {error}", self.url);
        match error {
            object_store::Error::NotFound { .. } => Error::corrupt(what),
            object_store::Error::Unauthenticated { .. } | object_store::Error::PermissionDenied { .. } => {
                Error::unavailable(what)
                    .with_hint("look at the credentials: s3.access-key, s3.secret-key, or the environment")
            }
            _other => Error::unavailable(what),
        }
    }

    /// Writes a file, also over another one.
    pub fn put(&self, name: &str, content: Vec<u8>) -> Result<()> {
        let (store, path) = (Arc::clone(&self.store), self.path(name));
        let written = wait(async move {
            if content.len() <= PART_BYTES {
                return store.put(&path, PutPayload::from(content)).await.map(drop);
            }
            let mut upload = store.put_multipart(&path).await?;
            let content = Bytes::from(content);
            for start in (0..content.len()).step_by(PART_BYTES) {
                let part = content.slice(start..content.len().min(start + PART_BYTES));
                if let Err(error) = upload.put_part(PutPayload::from(part)).await {
                    let _ = upload.abort().await;
                    return Err(error);
                }
            }
            upload.complete().await.map(drop)
        })?;
        written.map_err(|error| self.failed("write", name, &error))
    }

    /// Writes a file that is not there yet; whether it was not.
    pub fn create(&self, name: &str, content: Vec<u8>) -> Result<bool> {
        let (store, path) = (Arc::clone(&self.store), self.path(name));
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        match wait(async move { store.put_opts(&path, PutPayload::from(content), options).await })? {
            Ok(_) => Ok(true),
            Err(object_store::Error::AlreadyExists { .. }) => Ok(false),
            Err(error) => Err(self.failed("create", name, &error)),
        }
    }

    /// Reads a file.
    ///
    /// Errors: *Corrupt* if it is not there.
    pub fn get(&self, name: &str) -> Result<Vec<u8>> {
        let (store, path) = (Arc::clone(&self.store), self.path(name));
        let read = wait(async move { store.get(&path).await?.bytes().await })?;
        read.map(|content| content.to_vec()).map_err(|error| self.failed("read", name, &error))
    }

    /// Names of all files below, relative to the folder.
    pub fn list(&self) -> Result<Vec<String>> {
        let (store, prefix) = (Arc::clone(&self.store), self.prefix.clone());
        let listed = wait(async move { store.list(Some(&prefix)).try_collect::<Vec<_>>().await })?;
        let listed = listed.map_err(|error| self.failed("list", "", &error))?;
        let name = |path: &Path| {
            let parts = path.prefix_match(&self.prefix)?;
            Some(parts.map(|part| part.as_ref().to_string()).collect::<Vec<_>>().join("/"))
        };
        Ok(listed.iter().filter_map(|file| name(&file.location)).collect())
    }

    /// Removes a file; one that is not there is removed already.
    pub fn delete(&self, name: &str) -> Result<()> {
        let (store, path) = (Arc::clone(&self.store), self.path(name));
        match wait(async move { store.delete(&path).await })? {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.failed("remove", name, &error)),
        }
    }
}

/// Runs a request on the threads for it, and waits.
fn wait<T: Send + 'static>(request: impl Future<Output = T> + Send + 'static) -> Result<T> {
    static THREADS: OnceLock<std::io::Result<tokio::runtime::Runtime>> = OnceLock::new();
    let threads = THREADS.get_or_init(|| {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("object-store")
            .enable_all()
            .build()
    });
    let threads = threads.as_ref().map_err(|error| Error::io("start threads for the object store", error))?;
    let (done, answer) = mpsc::sync_channel(1);
    threads.spawn(async move {
        let _ = done.send(request.await);
    });
    answer.recv().map_err(|_| Error::unavailable("a request to the object store was lost"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_written_once_read_listed_and_removed() {
        let memory = Arc::new(object_store::memory::InMemory::new());
        let files = ObjectFiles::over(memory.clone(), "jobs/job-1");
        let other = ObjectFiles::over(memory, "jobs/job-10");
        files.put("shared/op=a b/part.parquet", vec![1, 2]).unwrap();
        other.put("x", vec![7]).unwrap();
        assert!(files.create("chk-1/metadata.json", vec![3]).unwrap());
        assert!(!files.create("chk-1/metadata.json", vec![4]).unwrap());
        assert_eq!(files.get("chk-1/metadata.json").unwrap(), [3]);
        let mut names = files.list().unwrap();
        names.sort();
        assert_eq!(names, ["chk-1/metadata.json", "shared/op=a b/part.parquet"]);
        files.delete("chk-1/metadata.json").unwrap();
        files.delete("chk-1/metadata.json").unwrap();
        assert_eq!(files.get("chk-1/metadata.json").unwrap_err().kind(), millpond_core::ErrorKind::Corrupt);
        let large = vec![9; PART_BYTES * 2 + 5];
        files.put("large", large.clone()).unwrap();
        assert_eq!(files.get("large").unwrap(), large);
    }

    #[test]
    fn a_bucket_may_be_part_of_the_host() {
        assert_eq!(with_bucket("http://minio:9000", "jobs"), "http://jobs.minio:9000");
        assert_eq!(with_bucket("s3.example.com", "jobs"), "jobs.s3.example.com");
        for bucket_in_host in [false, true] {
            let endpoint = Some("http://localhost:9000".to_string());
            let options = S3Options { endpoint, bucket_in_host, ..S3Options::default() };
            assert!(ObjectFiles::open("s3://jobs/a", &options).is_ok());
        }
    }

    #[test]
    fn places_are_told_apart() {
        assert!(is_object_store("s3://b/x") && is_object_store("gs://b") && !is_object_store("file:///x"));
        assert!(!is_object_store("/x"));
        assert!(ObjectFiles::open("ftp://b/x", &S3Options::default()).is_err());
    }
}
