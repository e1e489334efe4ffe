"""The language of a text by its script and its commonest words, or by the package langdetect.

A script that only one language here uses (Korean, Thai, Gujarati …) names it. Of several that share one, the language
whose commonest words are the largest share of the text is named; below `LEAST` none is.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable
from functools import lru_cache

from whet.imports import optional_package

LEAST = 0.08  # share of the words that must be common words of the language
READ = 5000  # characters of a text that are looked at
SCRIPTS = {  # the first word of a letter's Unicode name → languages
    **{"HANGUL": ("ko",), "THAI": ("th",), "GUJARATI": ("gu",), "TELUGU": ("te",), "TAMIL": ("ta",)},
    **{"GURMUKHI": ("pa",), "KANNADA": ("kn",), "MALAYALAM": ("ml",), "BENGALI": ("bn",), "GREEK": ("el",)},
    **{"HEBREW": ("he",), "HIRAGANA": ("ja",), "KATAKANA": ("ja",), "CJK": ("zh",)},
    **{"DEVANAGARI": ("hi", "mr", "ne"), "ARABIC": ("ar", "fa", "ur"), "CYRILLIC": ("ru", "bg", "uk")},
}
COMMON = {
    "en": "the of and to a in is that it for was on are as with his they at be this have from or had by but not what "
    "were we when your can said there an each which do how if will up other about many then them these so some her "
    "would make like him into time has two more no way could my than been who its i you he she our me all their out",
    "de": "der die das und ist in zu den mit von für auf ein eine nicht sich im dem des als auch es an werden aus er "
    "hat dass sie nach wird bei einer um am sind noch wie einem über so zum kann ich wir ihr aber oder wenn nur",
    "fr": "le la les de des et est en un une du que qui dans pour pas sur plus par au avec ce il sont se ne nous vous "
    "je elle mais ou son sa ses cette comme être tout leur aux on très fait d l c j n s qu",
    "es": "el la los las de que y en un una es por con para no se del al lo como más pero sus le ha o este sí porque "
    "esta entre cuando muy sin sobre también me hasta hay donde quien desde todo nos su son está ser",
    "pt": "o a os as de que e em um uma do da dos das é por com para não se no na mais mas como ao ele seu sua ou "
    "quando muito nos já eu também só pelo pela até isso ela entre são você está ser foi",
    "it": "il lo la i gli le di che e è un una in per con non si da del della dei al come più ma sono anche nel alla "
    "ha questo questa o se ci mi ti quando molto essere dalla sul delle suo sua",
    "nl": "de het een en van in is dat op te zijn met voor niet aan er om ook als dan maar bij nog uit naar heeft "
    "hij ze wordt door over wat zo kan worden deze ik je we",
    "sv": "och att det i en som är på för av med den till inte om ett han har de var jag men så sig vi från kan när nu "
    "hon eller vad ska du mycket där bara även denna",
    "fi": "ja on ei se että oli hän olla mutta joka kun ovat myös niin kuin hänen tai sen minä jos vain nyt voi sitä "
    "tämä ole mitä jo ne he me kaikki sekä jotka tässä olen sinä",
    "pl": "i w nie na z do to się że jest o jak ale po co za od czy tak przez są dla jego oraz być już może był który "
    "która tym także tego tylko lub bardzo",
    "vi": "là và của có không cho một được với các trong người đã những khi này tôi đó để bạn chúng ta như nhưng cũng "
    "từ về nhiều ra sẽ đến vào hơn làm còn rất phải nếu",
    "sw": "na ya wa kwa ni la za katika hii kuwa cha au yake hiyo ambayo wake kama lakini pia sana yangu watu moja "
    "baada hili huo yao hadi wao mimi wewe sisi vya huu hivyo kila zaidi tu",
    "tr": "ve bir bu da de için ile çok ne daha gibi ama olarak var olan o ben sen biz en kadar sonra mı her değil ki "
    "şey göre veya",
    "id": "yang dan di ini itu dengan untuk tidak dari dalam akan pada juga adalah ke karena oleh saya ada mereka bisa "
    "atau kita sudah kami dia lebih anda seperti",
    "hi": "है के की में और को का से पर यह एक नहीं हैं ने कि भी था थे लिए हो तो जो कर या वह इस मैं हम आप ही थी अपने बहुत",
    "mr": "आहे आणि या च्या मध्ये ते हे ती तो एक नाही असे आहेत होते करून मी आपण की पण त्या साठी हा ही होता खूप आम्ही काही त्यांच्या",
    "ne": "छ र को मा यो पनि हो छन् लागि एक भने थियो गर्न म तपाईं हामी छैन गरेको सबै धेरै उनी थिए भएको तर",
    "ar": "في من على إلى أن هذا التي الذي ما لا هو هي عن مع كان كل قد أو هذه إن ذلك بعد ثم لم كما أنا نحن لقد",
    "fa": "و در به از که این را با است برای آن یک خود تا بر می های شد شده هم ما او اما من شما کرد بود نیز",
    "ur": "کے کی میں ہے اور سے کا کو نے پر یہ ہیں کہ ایک بھی نہیں تھا وہ اس جو ہو تو کر آپ ہم لیے تھے گیا ہی تھی",
    "ru": "и в не на что он с как это по но из за от так же у вы мы я его к все она бы для о то был или если есть они "
    "был быть мне когда очень",
    "bg": "и на да се в за от не е са по че с като но той това до си тя те ще има много го или ми аз ние съм беше "
    "които след може",
    "uk": "і в на не що до з та як це за від у він я але його для є ми ви про так які бути вони її ще все або був коли "
    "дуже",
}
WORDS = {language: frozenset(text.split()) for language, text in COMMON.items()}
LATIN = ("en", "de", "fr", "es", "pt", "it", "nl", "sv", "fi", "pl", "vi", "sw", "tr", "id")


def knows(language: str) -> bool:
    """Whether `language_by_words` can name this language."""
    return language in WORDS or any(language in some for some in SCRIPTS.values())


def language_by_words(text: str) -> str:
    """The language by script and common words."""
    text = unicodedata.normalize("NFC", text[:READ].lower())
    candidates = _of_script(text)
    if len(candidates) == 1:
        return candidates[0]
    found = re.findall(r"[^\W\d_]+(?:[\u0900-\u097f]+)*", text) if "hi" not in candidates else text.split()
    tokens = [token.strip(".,;:!?।()\"'") for token in found]
    shares = {one: sum(token in WORDS[one] for token in tokens) / max(1, len(tokens)) for one in candidates}
    best = max(shares, key=lambda one: shares[one], default="")
    return best if shares.get(best, 0) >= LEAST else ""


def _of_script(text: str) -> tuple[str, ...]:
    """The languages of the script that most letters are of; kana among Chinese signs make a text Japanese."""
    counts = Counter(unicodedata.name(sign, "?").split()[0] for sign in text if sign.isalpha())
    if counts["HIRAGANA"] + counts["KATAKANA"] > counts.total() / 10:
        return ("ja",)
    most = counts.most_common(1)
    script = most[0][0] if most else ""
    return LATIN if script == "LATIN" else SCRIPTS.get(script, ())


@lru_cache(maxsize=1)
def langdetect() -> Callable[[str], str]:
    """Detection by the package of this name, with a fixed seed."""
    package = optional_package("langdetect", "task ifeval with languages=langdetect")
    package.DetectorFactory.seed = 0  # its samples are random otherwise

    def detect(text: str) -> str:
        try:
            return str(package.detect(text)).partition("-")[0]
        except package.LangDetectException:  # a text without letters
            return ""

    return detect
