//! The body of a response that is either the inner service's or the layer's own.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::in_flight::InFlight;

pin_project! {
    /// The inner service's body, passed through frame by frame, or the short text of a refusal. A request that is counted
    /// as in flight is so until this is dropped.
    #[derive(Debug)]
    pub struct ResponseBody<B> {
        #[pin]
        kind: Kind<B>,
        in_flight: Option<InFlight>,
    }
}

pin_project! {
    #[project = KindProject]
    #[derive(Debug)]
    enum Kind<B> {
        Inner { #[pin] body: B },
        Text { text: Option<Bytes> },
    }
}

impl<B> ResponseBody<B> {
    pub(super) const fn inner(body: B, in_flight: Option<InFlight>) -> Self {
        Self { kind: Kind::Inner { body }, in_flight }
    }

    pub(super) fn text(text: String) -> Self {
        Self { kind: Kind::Text { text: Some(Bytes::from(text)) }, in_flight: None }
    }
}

impl<B: Body<Data = Bytes>> Body for ResponseBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match self.project().kind.project() {
            KindProject::Inner { body } => body.poll_frame(cx),
            KindProject::Text { text } => Poll::Ready(text.take().map(|text| Ok(Frame::data(text)))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Inner { body } => body.is_end_stream(),
            Kind::Text { text } => text.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Inner { body } => body.size_hint(),
            Kind::Text { text } => SizeHint::with_exact(text.as_ref().map_or(0, |text| text.len() as u64)),
        }
    }
}
