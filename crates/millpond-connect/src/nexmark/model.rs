//! The event model: what each event number stands for.
//!
//! Of every 50 events one is a person, three are auctions and 46 bids. An event is drawn from a
//! generator seeded by (seed, number); the order of the draws is part of the model, so what is
//! drawn last can be left out. Half of the bids go to the latest "hot" auction, three quarters
//! come from the latest hot bidder; prices are spread over six powers of ten.

use millpond_core::random::Random;

use super::columns::Column;

/// Events of one turn: one person, three auctions, the rest bids.
pub(super) const GROUP: u64 = 50;
const PERSONS: u64 = 1;
const AUCTIONS: u64 = 3;

/// Persons, and likewise auctions, are numbered from here.
const FIRST_ID: u64 = 1_000;
const FIRST_CATEGORY: u64 = 10;
const AUCTIONS_IN_FLIGHT: u64 = 100;
const ACTIVE_PERSONS: u64 = 1_000;
/// Every hundredth auction, seller and bidder is hot.
const HOT_STEP: u64 = 100;
/// Ids this far ahead of the last may be drawn, as if events overtook each other.
const LEAD: u64 = 10;

const POOL_BYTES: usize = 1 << 20;
const CHANNELS: usize = 10_000;

pub(super) const STATES: [&str; 6] = ["AZ", "CA", "ID", "OR", "WA", "WY"];
pub(super) const CITIES: [&str; 10] = [
    "Phoenix",
    "Los Angeles",
    "San Francisco",
    "Boise",
    "Portland",
    "Bend",
    "Redmond",
    "Seattle",
    "Kent",
    "Cheyenne",
];
const FIRST_NAMES: [&str; 11] =
    ["Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter"];
const LAST_NAMES: [&str; 9] =
    ["Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris"];
const HOT_CHANNELS: [&str; 4] = ["Google", "Facebook", "Baidu", "Apple"];

/// The kinds of events; the number is the `event_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub(super) enum Kind {
    Person = 0,
    Auction = 1,
    Bid = 2,
}

impl Kind {
    /// The kind of an event by its number.
    pub(super) fn of(event: u64) -> Self {
        match event % GROUP {
            place if place < PERSONS => Self::Person,
            place if place < PERSONS + AUCTIONS => Self::Auction,
            _ => Self::Bid,
        }
    }
    pub(super) fn columns(self) -> &'static [Column] {
        match self {
            Self::Person => super::columns::PERSON,
            Self::Auction => super::columns::AUCTION,
            Self::Bid => super::columns::BID,
        }
    }
    /// The SQL type of the event as a row.
    pub(super) fn row_type(self) -> String {
        let fields: Vec<String> = self
            .columns()
            .iter()
            .map(|column| format!("`{}` {}", column.name, column.content.sql()))
            .collect();
        format!("ROW<{}>", fields.join(", "))
    }
}

/// A part of a text that belongs to someone else.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Span {
    start: u32,
    end: u32,
}

impl Span {
    pub(super) fn of<'a>(&self, text: &'a str) -> &'a str {
        &text[self.start as usize..self.end as usize]
    }
    fn new(start: usize, end: usize) -> Self {
        Self { start: start as u32, end: end as u32 }
    }
    fn len(&self) -> usize {
        (self.end - self.start) as usize
    }
}

/// A person; texts lie in the batch's scratch, `extra` in the model's letters.
#[derive(Debug, Clone, Default)]
pub(super) struct Person {
    pub(super) id: i64,
    pub(super) name: Span,
    pub(super) email: Span,
    pub(super) card: Span,
    pub(super) city: usize,
    pub(super) state: usize,
    pub(super) time: i64,
    pub(super) extra: Span,
}

/// An auction; texts lie in the batch's scratch, `extra` in the model's letters.
#[derive(Debug, Clone, Default)]
pub(super) struct Auction {
    pub(super) id: i64,
    pub(super) item_name: Span,
    pub(super) description: Span,
    pub(super) initial_bid: i64,
    pub(super) reserve: i64,
    pub(super) time: i64,
    pub(super) expires: i64,
    pub(super) seller: i64,
    pub(super) category: i64,
    pub(super) extra: Span,
}

/// A bid; `channel` is an index of [`Model::channel`], `extra` lies in the model's letters.
#[derive(Debug, Clone, Default)]
pub(super) struct Bid {
    pub(super) auction: i64,
    pub(super) bidder: i64,
    pub(super) price: i64,
    pub(super) channel: usize,
    pub(super) time: i64,
    pub(super) extra: Span,
}

/// The parameters of the model, and texts that all events share.
#[derive(Debug)]
pub(super) struct Model {
    seed: u64,
    base_ms: i64,
    event_micros: f64,
    /// Random letters, of which every `extra` is a piece.
    pub(super) letters: String,
    /// Names and URLs, the hot ones first.
    channels: Vec<(String, String)>,
}

impl Model {
    pub(super) fn new(seed: u64, base_ms: i64, events_per_second: f64) -> Self {
        let mut random = seeded(seed, u64::MAX);
        let letters = (0..POOL_BYTES).map(|_| letter(&mut random)).collect();
        let mut channels: Vec<(String, String)> =
            HOT_CHANNELS.iter().map(|name| (name.to_string(), base_url(&mut random))).collect();
        channels.extend((0..CHANNELS as i32).map(|index| {
            let mut url = base_url(&mut random);
            if random.below(10) > 0 {
                url.push_str(&format!("&channel_id={}", i64::from(index.reverse_bits()).abs()));
            }
            (format!("channel-{index}"), url)
        }));
        Self { seed, base_ms, event_micros: 1_000_000.0 / events_per_second, letters, channels }
    }

    /// Name and URL of a channel.
    pub(super) fn channel(&self, index: usize) -> &(String, String) {
        &self.channels[index]
    }

    /// The time of an event in milliseconds.
    fn time(&self, event: u64) -> i64 {
        self.base_ms + ((event as f64 * self.event_micros) as u64 / 1_000) as i64
    }

    /// Draws up to `depth` (see [`Column::depth`]).
    pub(super) fn bid(&self, event: u64, depth: u8) -> Bid {
        let random = &mut seeded(self.seed, event);
        let mut bid = Bid { time: self.time(event), ..Bid::default() };
        if depth >= 1 {
            let is_hot = random.below(2) > 0;
            let auction =
                if is_hot { last_auction(event) / HOT_STEP * HOT_STEP } else { any_auction(event, random) };
            bid.auction = (FIRST_ID + auction) as i64;
        }
        if depth >= 2 {
            let is_hot = random.below(4) > 0;
            let bidder =
                if is_hot { last_person(event) / HOT_STEP * HOT_STEP + 1 } else { any_person(event, random) };
            // The original model adds the first id twice; kept.
            bid.bidder = (2 * FIRST_ID + bidder) as i64;
        }
        if depth >= 3 {
            bid.price = price(random);
        }
        if depth >= 4 {
            let is_hot = random.below(2) > 0;
            let hot = HOT_CHANNELS.len();
            bid.channel = if is_hot {
                random.below(hot as u64) as usize
            } else {
                hot + random.below(CHANNELS as u64) as usize
            };
        }
        if depth >= 5 {
            bid.extra = extra(random, 32, 100);
        }
        bid
    }

    /// Draws up to `depth`; texts are appended to `scratch`.
    pub(super) fn auction(&self, event: u64, depth: u8, scratch: &mut String) -> Auction {
        let random = &mut seeded(self.seed, event);
        let time = self.time(event);
        let mut auction = Auction { id: (FIRST_ID + last_auction(event)) as i64, time, ..Auction::default() };
        if depth == 0 {
            return auction;
        }
        let is_hot = random.below(4) > 0;
        let seller =
            if is_hot { last_person(event) / HOT_STEP * HOT_STEP } else { any_person(event, random) };
        auction.seller = (FIRST_ID + seller) as i64;
        auction.category = (FIRST_CATEGORY + random.below(5)) as i64;
        auction.initial_bid = price(random);
        let horizon = self.time(event + AUCTIONS_IN_FLIGHT * GROUP / AUCTIONS) - time;
        auction.expires = time + 1 + random.below((horizon as u64 * 2).max(1)) as i64;
        if depth >= 2 {
            auction.item_name = push_words(scratch, random, 20, ' ');
            auction.description = push_words(scratch, random, 100, ' ');
            auction.reserve = auction.initial_bid + price(random);
            auction.extra = extra(random, 48 + auction.item_name.len() + auction.description.len(), 500);
        }
        auction
    }

    /// Draws up to `depth`; texts are appended to `scratch`.
    pub(super) fn person(&self, event: u64, depth: u8, scratch: &mut String) -> Person {
        let id = (FIRST_ID + last_person(event)) as i64;
        let mut person = Person { id, time: self.time(event), ..Person::default() };
        if depth == 0 {
            return person;
        }
        let random = &mut seeded(self.seed, event);
        person.name = push_name(scratch, random);
        person.email = push_email(scratch, random);
        person.card = push_card(scratch, random);
        person.city = random.below(CITIES.len() as u64) as usize;
        person.state = random.below(STATES.len() as u64) as usize;
        let place = CITIES[person.city].len() + STATES[person.state].len();
        let length = 8 + person.name.len() + person.email.len() + person.card.len() + place;
        person.extra = extra(random, length, 200);
        person
    }
}

fn seeded(seed: u64, event: u64) -> Random {
    let mut random = Random::seeded(seed ^ event.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    random.next_u64();
    random
}

/// Each group begins with its person.
fn last_person(event: u64) -> u64 {
    event / GROUP
}

/// The last auction at or before an event; before the first one, the first.
fn last_auction(event: u64) -> u64 {
    let (group, place) = (event / GROUP, event % GROUP);
    match place {
        _ if place < PERSONS => (group * AUCTIONS).saturating_sub(1),
        _ => group * AUCTIONS + (place - PERSONS).min(AUCTIONS - 1),
    }
}

fn any_person(event: u64, random: &mut Random) -> u64 {
    let persons = last_person(event) + 1;
    let active = persons.min(ACTIVE_PERSONS);
    persons - active + random.below(active + LEAD)
}

fn any_auction(event: u64, random: &mut Random) -> u64 {
    let last = last_auction(event);
    let first = last.saturating_sub(AUCTIONS_IN_FLIGHT);
    first + random.below(last - first + 1 + LEAD)
}

fn price(random: &mut Random) -> i64 {
    (10f64.powf(random.unit_f64() * 6.0) * 100.0).round() as i64
}

fn letter(random: &mut Random) -> char {
    (b'a' + random.below(26) as u8) as char
}

/// Letters, sometimes a special one; blanks at the ends are trimmed.
fn push_words(out: &mut String, random: &mut Random, length_max: u64, special: char) -> Span {
    let start = out.len();
    let length = 3 + random.below(length_max - 3);
    for _ in 0..length {
        let is_special = random.below(13) == 0;
        out.push(if is_special { special } else { letter(random) });
    }
    let end = out.trim_end_matches(' ').len().max(start);
    let blanks = out[start..end].len() - out[start..end].trim_start_matches(' ').len();
    Span::new(start + blanks, end)
}

fn push_name(out: &mut String, random: &mut Random) -> Span {
    let start = out.len();
    out.push_str(FIRST_NAMES[random.below(FIRST_NAMES.len() as u64) as usize]);
    out.push(' ');
    out.push_str(LAST_NAMES[random.below(LAST_NAMES.len() as u64) as usize]);
    Span::new(start, out.len())
}

fn push_email(out: &mut String, random: &mut Random) -> Span {
    let user = push_words(out, random, 7, ' ');
    out.truncate(user.end as usize);
    out.push('@');
    let at = out.len();
    let host = push_words(out, random, 5, ' ');
    out.truncate(host.end as usize);
    out.replace_range(at..host.start as usize, "");
    out.push_str(".com");
    Span::new(user.start as usize, out.len())
}

fn push_card(out: &mut String, random: &mut Random) -> Span {
    let start = out.len();
    for index in 0..4 {
        if index > 0 {
            out.push(' ');
        }
        let number = random.below(10_000);
        for unit in [1_000, 100, 10, 1] {
            out.push((b'0' + (number / unit % 10) as u8) as char);
        }
    }
    Span::new(start, out.len())
}

fn base_url(random: &mut Random) -> String {
    let mut url = "https://www.nexmark.com/".to_string();
    for _ in 0..3 {
        push_words(&mut url, random, 5, '_');
        url.push('/');
    }
    url.push_str("item.htm?query=1");
    url
}

/// Fills an event of `length` bytes up to about `wanted`, give or take a fifth of what is missing.
fn extra(random: &mut Random, length: usize, wanted: usize) -> Span {
    if length > wanted {
        return Span::default();
    }
    let missing = wanted - length;
    let delta = (missing as f64 * 0.2).round() as usize;
    let spread = if delta == 0 { 0 } else { random.below(2 * delta as u64) as usize };
    let length = missing - delta + spread;
    let start = random.below((POOL_BYTES - length) as u64) as usize;
    Span::new(start, start + length)
}
