//! What the semantic cache knows of words: which carry no meaning of their own, which mean the same, which
//! exclude each other, and which must stand in both texts. English; of other languages it knows nothing, and texts
//! in them are compared accordingly.
use std::collections::{HashMap, HashSet};
use std::sync::OnceLock;

/// A class of words that must be the same in both texts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    Negation,
    Number,
    Unit,
    /// Months, weekdays, and what is counted from today.
    Date,
    /// Languages of people and of programs.
    Language,
    /// What is to be done with a text.
    Task,
    Person,
}

/// All of them.
pub(super) const CLASSES: [Class; 7] =
    [Class::Negation, Class::Number, Class::Unit, Class::Date, Class::Language, Class::Task, Class::Person];

/// All tables, ready to be asked.
#[derive(Debug, Default)]
pub(super) struct Lexicon {
    /// Words of grammar.
    pub function: HashSet<&'static str>,
    /// Words that could as well be left out.
    pub filler: HashSet<&'static str>,
    /// Words that tell English from other languages.
    pub english: HashSet<&'static str>,
    /// The first word of a group of words with one meaning.
    pub same: HashMap<&'static str, &'static str>,
    pub strict: HashMap<&'static str, (Class, &'static str)>,
    /// Groups of which a text means one; a word may belong to several.
    pub exclusive: HashMap<&'static str, Vec<usize>>,
    /// Values of number words; from 100 on they multiply.
    pub numbers: HashMap<&'static str, u64>,
}

impl Lexicon {
    /// The tables, made at the first use.
    pub fn get() -> &'static Lexicon {
        static LEXICON: OnceLock<Lexicon> = OnceLock::new();
        LEXICON.get_or_init(Lexicon::new)
    }

    fn new() -> Lexicon {
        let mut lexicon = Lexicon {
            function: FUNCTION.split_whitespace().chain(ENGLISH.split_whitespace()).collect(),
            filler: FILLER.split_whitespace().collect(),
            english: ENGLISH.split_whitespace().chain(ENGLISH_VERBS.split_whitespace()).collect(),
            ..Lexicon::default()
        };
        for (first, word) in groups(SAME) {
            lexicon.same.insert(word, first);
        }
        for (class, table) in STRICT {
            for (first, word) in groups(table) {
                lexicon.strict.insert(word, (*class, first));
            }
        }
        for (number, group) in EXCLUSIVE.split(" | ").enumerate() {
            for word in group.split_whitespace() {
                lexicon.exclusive.entry(word).or_default().push(number);
            }
        }
        for (words, first, step) in NUMBERS {
            lexicon
                .numbers
                .extend(words.split_whitespace().zip(0..).map(|(word, n)| (word, first + step * n)));
        }
        lexicon.numbers.extend(MAGNITUDES);
        lexicon
    }
}

/// The words of a table, each with the first word of its group; bars stand between groups.
fn groups(table: &'static str) -> impl Iterator<Item = (&'static str, &'static str)> {
    table.split(" | ").flat_map(|group| {
        let first = group.split_whitespace().next().unwrap_or_default();
        group.split_whitespace().map(move |word| (first, word))
    })
}

/// Words of grammar that hardly any other language has; one of them makes a text English.
const ENGLISH: &str = "the what how are which who whom whose where when why does did of and my you your with this that \
    these those from about should would could can has have had been be being there their they we our us it its i'm if \
    into than then while because between through during";

/// Verbs that begin requests, and so make a text English, too; they carry meaning, though.
const ENGLISH_VERBS: &str = "write give list explain describe summarise summarize translate compose show tell create \
    suggest recommend name find make compare please";

const FUNCTION: &str = "a an in on at to for by as or but so do done is am was were will shall may might must i me \
    mine myself yourself he him his she her hers them some any each every all both such own same other another more \
    most much many very too just only also again once here out up down off over under upon against per via onto \
    across along around within toward towards need want let get got";

const FILLER: &str = "please tell give kindly really quite actually exactly simply basically city okay ok possible thanks thank \
    hello hi hey best way good able currently usually some few quick quickly particular certain";

/// The first word of a group stands for all.
const SAME: &str = "\
    start begin commence | buy purchase bought | fix repair mend | remove delete erase | make create \
    build made making | write compose wrote written | turn convert change | bike bicycle | tap faucet | \
    kid child children kids | film movie | car automobile | job work employment | big large huge | small \
    little tiny | fast quick rapid | show display | use using utilise utilize employ | help assist | get \
    obtain acquire | need require | choose select pick | find locate | test check verify | answer reply \
    respond response | picture image photo | mistake error bug | purpose goal aim | doctor physician | \
    differ difference different | mean meaning | list name enumerate | author writer | explain describe | \
    revert undo | compute calculate | suggest recommend | phone telephone smartphone | fridge \
    refrigerator | holiday vacation | shop store | trip journey | exercise workout | painter artist | \
    disease illness | benefit advantage | drawback disadvantage | cost price | die dying death | live \
    alive life | keep retain | people person persons | man men | woman women | mouse mice | foot feet | \
    tooth teeth | regular regularly | sleep sleeping slept | go went gone going | take took taken | know \
    knew known | run ran running | think thought | teach taught";

const STRICT: &[(Class, &str)] = &[
    (
        Class::Negation,
        "no not never none nobody nothing nowhere neither nor without cannot except unless lack lacks lacking hardly \
         barely avoid avoiding avoids exclude excluding excludes excluded refuse fail fails failed",
    ),
    (
        Class::Unit,
        "km kilometre kilometres kilometer kilometers kms | m metre metres meter meters | cm centimetre \
         centimetres centimeter centimeters | mm millimetre millimetres millimeter millimeters | mile \
         miles mi | yard yards yd | inch inches | ft | kg kilo kilos kilogram kilograms kilogramme \
         kilogrammes kgs | g gram grams gramme grammes | mg milligram milligrams | pound pounds lb lbs \
         gbp £ | ounce ounces oz | ton tons tonne tonnes | l litre litres liter liters | ml millilitre \
         millilitres milliliter milliliters | gallon gallons gal | pint pints | cup cups | teaspoon \
         teaspoons tsp | tablespoon tablespoons tbsp | ms millisecond milliseconds | seconds sec secs | \
         minute minutes min mins | hour hours hr hrs | day days daily | week weeks weekly | month months \
         monthly | year years yearly annual annually | decade decades | century centuries | celsius °c | \
         fahrenheit °f | kelvin | percent % percentage | dollar dollars usd $ | euro euros eur € | yen \
         jpy ¥ | aud | cad | chf franc francs | cent cents | byte bytes | bit bits | kb kilobyte \
         kilobytes kib | mb megabyte megabytes mib | gb gigabyte gigabytes gib | tb terabyte terabytes \
         tib | mph | kph kmh km/h | hz hertz | khz | mhz | ghz | watt watts w | kw kilowatt kilowatts | \
         kwh | volt volts v | amp amps ampere amperes | joule joules | calorie calories kcal | acre acres \
         | hectare hectares | am a.m | pm p.m",
    ),
    (
        Class::Date,
        "january jan | february feb | april apr | june jun | july jul | august aug | september sep sept | \
         october oct | november nov | december dec | monday mondays | tuesday tuesdays | wednesday \
         wednesdays | thursday thursdays | friday fridays | saturday saturdays | sunday sundays | today | \
         tomorrow | yesterday | tonight | weekend weekends | spring | summer | autumn fall | winter | \
         morning mornings | noon | afternoon afternoons | evening evenings | midnight | easter | \
         christmas | bc bce | ad ce | now | next | last | current | previous",
    ),
    (
        Class::Language,
        "english | french | german | spanish | italian | portuguese | dutch | polish | russian | \
         ukrainian | czech | swedish | norwegian | danish | finnish | greek | turkish | arabic | hebrew | \
         hindi | urdu | bengali | chinese mandarin | cantonese | japanese | korean | vietnamese | thai | \
         indonesian | latin | python | javascript js | typescript ts | java | rust | c | c++ cpp | c# | \
         go golang | ruby | php | perl | swift | kotlin | scala | haskell | bash | powershell | sql | \
         html | css | lua | r | matlab | fortran | cobol | json | yaml | xml | csv | toml | markdown",
    ),
    (
        Class::Task,
        "summarise summarize summary | translate translation | proofread | rewrite rephrase paraphrase | \
         shorten | expand | poem | haiku | essay | story | email mail | letter | joke | song | recipe | \
         code script | table | outline | report | article",
    ),
    (Class::Person, "he him his himself | she her hers herself"),
];

/// Words of a group exclude each other.
const EXCLUSIVE: &str = "\
    enable disable | on off | up down | in out | inside outside | before after during | above below | \
    over under | increase decrease | raise lower reduce | rise set | grow shrink | maximum minimum | max \
    min | maximise minimise | maximize minimize | highest lowest | most least | more less | more fewer | \
    high low | long short | tall short | big small | large small | heavy light | thick thin | wide narrow \
    | deep shallow | fast slow | faster slower | early late | earlier later | earliest latest | old new | \
    old young | hot cold | warm cool | dry wet | hard soft | hard easy | difficult easy | simple complex \
    | cheap expensive | cheaper expensive | cheapest expensive | rich poor | strong weak | good bad | \
    better worse | best worst | true false | right wrong | right left | north south east west | northern \
    southern eastern western | open close | open shut | start stop end finish | begin end | first last | \
    add remove | add subtract | sum difference | multiply divide | push pull | buy sell | lend borrow | \
    give take receive | send receive | win lose | gain lose | find lose | save lose | love hate | like \
    dislike | import export | upload download | encode decode | encrypt decrypt | input output | read \
    write | client server | public private | local remote | internal external | ascending descending | \
    vertical horizontal | row column | width height length depth | serial parallel | top bottom | upper \
    lower | front back | forward backward | forwards backwards | begin finish | arrive depart leave | \
    enter exit leave | allow forbid deny | accept reject | approve reject | pass fail | create destroy | \
    create delete | attach detach | include exclude | lock unlock | hire fire | teach learn | ask answer \
    | question answer | cause effect | cause prevent cure | pros cons | profit loss | income expense | \
    debit credit | asset liability | supply demand | male female | man woman | boy girl | mother father | \
    mom dad | mum dad | son daughter | brother sister | husband wife | king queen | uncle aunt | parent \
    child | adult child | teacher student | employer employee | landlord tenant | host guest | doctor \
    patient | beginner expert advanced | amateur professional | day night | past future present | always \
    never sometimes often rarely | all some none | everyone nobody | everything nothing | and or | acid \
    base | solid liquid gas | positive negative | optimist pessimist | cat dog | red blue green yellow \
    black white brown orange purple pink | breakfast lunch dinner | singular plural | noun verb adjective \
    adverb | synonym antonym | synonyms antonyms | encourage discourage | attack defend | appear vanish | \
    float sink | freeze melt | inhale exhale | victory defeat | war peace | plus minus times | mean \
    median mode | sine cosine tangent | sin cos tan | perimeter area volume | radius diameter \
    circumference | odd even | prefix suffix | push pop | get post put patch | minor major | native \
    foreign | legal criminal | formal informal casual | explicit implicit | static dynamic | synchronous \
    asynchronous";

const NUMBERS: &[(&str, u64, u64)] = &[
    (
        "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen \
         seventeen eighteen nineteen",
        0,
        1,
    ),
    ("twenty thirty forty fifty sixty seventy eighty ninety", 20, 10),
];

const MAGNITUDES: [(&str, u64); 5] = [
    ("hundred", 100),
    ("thousand", 1_000),
    ("million", 1_000_000),
    ("billion", 1_000_000_000),
    ("trillion", 1_000_000_000_000),
];

/// Words that count, but are no plain numbers; each must be met by itself.
pub(super) const COUNTING: [&str; 24] = [
    "first",
    "second",
    "third",
    "fourth",
    "fifth",
    "sixth",
    "seventh",
    "eighth",
    "ninth",
    "tenth",
    "eleventh",
    "twelfth",
    "twentieth",
    "hundredth",
    "half",
    "quarter",
    "double",
    "triple",
    "twice",
    "thrice",
    "dozen",
    "couple",
    "single",
    "pair",
];

/// Prefixes that turn a word into its opposite.
pub(super) const TURNING: [&str; 12] =
    ["un", "dis", "de", "in", "im", "ir", "il", "non", "mis", "anti", "a", "counter"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_means_one_thing() {
        let mut seen: HashMap<&str, &str> = HashMap::new();
        for (first, word) in groups(SAME) {
            assert_eq!(seen.insert(word, first), None, "{word}");
        }
        let mut seen: HashSet<&str> = HashSet::new();
        for (_, word) in STRICT.iter().flat_map(|(_, table)| groups(table)) {
            assert!(seen.insert(word), "{word}");
        }
        assert!(EXCLUSIVE.split(" | ").all(|group| group.split(' ').count() > 1));
    }
}
