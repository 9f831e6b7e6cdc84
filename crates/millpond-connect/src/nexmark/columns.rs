//! Events to columns: events of one kind are drawn into a plain vector, then each wanted column
//! is one typed loop over it.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, StringArray, StringBuilder, TimestampMillisecondArray};
use arrow::datatypes::{DataType, TimeUnit};

use super::model::{Auction, Bid, CITIES, Kind, Model, Person, STATES};

/// A column of an event.
#[derive(Debug)]
pub(super) struct Column {
    pub(super) name: &'static str,
    pub(super) content: Content,
    /// How far into the event's draws it lies; 0: none is needed.
    pub(super) depth: u8,
}

/// What a column holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Content {
    Long,
    Text,
    Time,
}

impl Content {
    /// The type as it is declared in SQL.
    pub(super) fn sql(self) -> &'static str {
        match self {
            Self::Long => "BIGINT",
            Self::Text => "VARCHAR",
            Self::Time => "TIMESTAMP(3)",
        }
    }
    /// Whether a column declared so can hold it.
    pub(super) fn fits(self, declared: &DataType) -> bool {
        match self {
            Self::Long => *declared == DataType::Int64,
            Self::Text => declared.is_string(),
            Self::Time => matches!(
                declared,
                DataType::Timestamp(
                    TimeUnit::Millisecond | TimeUnit::Microsecond | TimeUnit::Nanosecond,
                    None
                )
            ),
        }
    }
}

/// A column that is asked for: its index in [`Kind::columns`] and its declared type.
#[derive(Debug, Clone)]
pub(super) struct Wanted {
    pub(super) index: usize,
    pub(super) data_type: DataType,
}

const fn column(name: &'static str, content: Content, depth: u8) -> Column {
    Column { name, content, depth }
}

pub(super) const PERSON: &[Column] = &[
    column("id", Content::Long, 0),
    column("name", Content::Text, 1),
    column("emailAddress", Content::Text, 1),
    column("creditCard", Content::Text, 1),
    column("city", Content::Text, 1),
    column("state", Content::Text, 1),
    column("dateTime", Content::Time, 0),
    column("extra", Content::Text, 1),
];

pub(super) const AUCTION: &[Column] = &[
    column("id", Content::Long, 0),
    column("itemName", Content::Text, 2),
    column("description", Content::Text, 2),
    column("initialBid", Content::Long, 1),
    column("reserve", Content::Long, 2),
    column("dateTime", Content::Time, 0),
    column("expires", Content::Time, 1),
    column("seller", Content::Long, 1),
    column("category", Content::Long, 1),
    column("extra", Content::Text, 2),
];

pub(super) const BID: &[Column] = &[
    column("auction", Content::Long, 1),
    column("bidder", Content::Long, 2),
    column("price", Content::Long, 3),
    column("channel", Content::Text, 4),
    column("url", Content::Text, 4),
    column("dateTime", Content::Time, 0),
    column("extra", Content::Text, 5),
];

/// The wanted columns of events of one kind, in the model's own types.
pub(super) fn build(model: &Model, kind: Kind, events: &[u64], wanted: &[Wanted]) -> Vec<ArrayRef> {
    let depth = wanted.iter().map(|wanted| kind.columns()[wanted.index].depth).max().unwrap_or(0);
    let indices = wanted.iter().map(|wanted| wanted.index);
    let mut scratch = String::new();
    match kind {
        Kind::Person => {
            let persons: Vec<Person> =
                events.iter().map(|event| model.person(*event, depth, &mut scratch)).collect();
            indices.map(|index| person_column(model, &persons, &scratch, index)).collect()
        }
        Kind::Auction => {
            let auctions: Vec<Auction> =
                events.iter().map(|event| model.auction(*event, depth, &mut scratch)).collect();
            indices.map(|index| auction_column(model, &auctions, &scratch, index)).collect()
        }
        Kind::Bid => {
            let bids: Vec<Bid> = events.iter().map(|event| model.bid(*event, depth)).collect();
            indices.map(|index| bid_column(model, &bids, index)).collect()
        }
    }
}

fn person_column(model: &Model, persons: &[Person], scratch: &str, index: usize) -> ArrayRef {
    match index {
        0 => longs(persons, |person| person.id),
        1 => texts(persons, |person| person.name.of(scratch)),
        2 => texts(persons, |person| person.email.of(scratch)),
        3 => texts(persons, |person| person.card.of(scratch)),
        4 => texts(persons, |person| CITIES[person.city]),
        5 => texts(persons, |person| STATES[person.state]),
        6 => times(persons, |person| person.time),
        _ => texts(persons, |person| person.extra.of(&model.letters)),
    }
}

fn auction_column(model: &Model, auctions: &[Auction], scratch: &str, index: usize) -> ArrayRef {
    match index {
        0 => longs(auctions, |auction| auction.id),
        1 => texts(auctions, |auction| auction.item_name.of(scratch)),
        2 => texts(auctions, |auction| auction.description.of(scratch)),
        3 => longs(auctions, |auction| auction.initial_bid),
        4 => longs(auctions, |auction| auction.reserve),
        5 => times(auctions, |auction| auction.time),
        6 => times(auctions, |auction| auction.expires),
        7 => longs(auctions, |auction| auction.seller),
        8 => longs(auctions, |auction| auction.category),
        _ => texts(auctions, |auction| auction.extra.of(&model.letters)),
    }
}

fn bid_column(model: &Model, bids: &[Bid], index: usize) -> ArrayRef {
    match index {
        0 => longs(bids, |bid| bid.auction),
        1 => longs(bids, |bid| bid.bidder),
        2 => longs(bids, |bid| bid.price),
        3 => texts(bids, |bid| &model.channel(bid.channel).0),
        4 => texts(bids, |bid| &model.channel(bid.channel).1),
        5 => times(bids, |bid| bid.time),
        _ => texts(bids, |bid| bid.extra.of(&model.letters)),
    }
}

fn longs<E>(events: &[E], value: impl Fn(&E) -> i64) -> ArrayRef {
    Arc::new(Int64Array::from_iter_values(events.iter().map(value)))
}

fn times<E>(events: &[E], value: impl Fn(&E) -> i64) -> ArrayRef {
    Arc::new(TimestampMillisecondArray::from_iter_values(events.iter().map(value)))
}

fn texts<'a, E>(events: &'a [E], value: impl Fn(&'a E) -> &'a str) -> ArrayRef {
    let bytes = events.iter().map(|event| value(event).len()).sum();
    let mut builder = StringBuilder::with_capacity(events.len(), bytes);
    for event in events {
        builder.append_value(value(event));
    }
    let array: StringArray = builder.finish();
    Arc::new(array)
}
