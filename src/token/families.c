/* The patterns, as the families' own tokenizer.json files have them. */
#include "token/families.h"
#include "token/scan.h"
#include <string.h>

#define CONTRACTION KM_PATTERN_CONTRACTION
#define SPACES KM_PATTERN_SPACES
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
/* Words that start with capitals, or go on in small letters, with `tail` behind them. */
#define CASED(tail)                                                                                \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" tail "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER    \
    "*" tail
#define PUNCTUATION_KEYS "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~]"
#define DEEPSEEK3                                                                                  \
    PUNCTUATION_KEYS "[A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| "                     \
                     "?[\\p{P}\\p{S}]+[\\r\\n]*|" SPACES
#define BLOOM                                                                                      \
    " ?[^(\\s|.,!?\xE2\x80\xA6\xE3\x80\x82\xEF\xBC\x8C\xE3\x80\x81\xE0\xA5\xA4\xDB\x94\xD8\x8C)]+"
#define CJK "[\xE4\xB8\x80-\xE9\xBE\xA5\xE0\xA0\x80-\xE4\xB8\x80\xEA\xB0\x80-\xED\x9F\xBF]+"
/* The letters of alphabets that have capitals, as DeepSeek lists them. */
#define DEEPSEEK_LETTERS                                                                           \
    "A-Za-z\\x{b5}\\x{c0}-\\x{d6}\\x{d8}-\\x{f6}\\x{f8}-\\x{1ba}\\x{1bc}-\\x{1bf}\\x{1c4}-"        \
    "\\x{293}\\x{295}-\\x{2af}\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37b}-\\x{37d}\\x{37f}\\x{386}"  \
    "\\x{388}-\\x{38a}\\x{38c}\\x{38e}-\\x{3a1}\\x{3a3}-\\x{3f5}\\x{3f7}-\\x{481}\\x{48a}-"        \
    "\\x{52f}\\x{531}-\\x{556}\\x{10a0}-\\x{10c5}\\x{13a0}-\\x{13f5}\\x{13f8}-\\x{13fd}"           \
    "\\x{1c90}-\\x{1cba}\\x{1cbd}-\\x{1cbf}\\x{1d00}-\\x{1d2b}\\x{1d6b}-\\x{1d77}\\x{1d79}-"       \
    "\\x{1d9a}\\x{1e00}-\\x{1f15}\\x{1f18}-\\x{1f1d}\\x{1f20}-\\x{1f45}\\x{1f48}-\\x{1f4d}"        \
    "\\x{1f50}-\\x{1f57}\\x{1f59}\\x{1f5b}\\x{1f5d}\\x{1f5f}-\\x{1f7d}\\x{1f80}-\\x{1fb4}"         \
    "\\x{1fb6}-\\x{1fbc}\\x{1fbe}\\x{1fc2}-\\x{1fc4}\\x{1fc6}-\\x{1fcc}\\x{1fd0}-\\x{1fd3}"        \
    "\\x{1fd6}-\\x{1fdb}\\x{1fe0}-\\x{1fec}\\x{1ff2}-\\x{1ff4}\\x{1ff6}-\\x{1ffc}\\x{2102}"        \
    "\\x{2107}\\x{210a}-\\x{2113}\\x{2115}\\x{2119}-\\x{211d}\\x{2124}\\x{2126}\\x{2128}"          \
    "\\x{212a}-\\x{212d}\\x{212f}-\\x{2134}\\x{2139}\\x{213c}-\\x{213f}\\x{2145}-\\x{2149}"        \
    "\\x{214e}\\x{2183}\\x{2184}\\x{2c00}-\\x{2c7b}\\x{2c7e}-\\x{2ce4}\\x{2ceb}-\\x{2cee}"         \
    "\\x{2cf2}\\x{2cf3}\\x{a640}-\\x{a66d}\\x{a680}-\\x{a69b}\\x{a722}-\\x{a76f}\\x{a771}-"        \
    "\\x{a787}\\x{a78b}-\\x{a78e}\\x{ab70}-\\x{abbf}\\x{fb00}-\\x{fb06}\\x{fb13}-\\x{fb17}"        \
    "\\x{ff21}-\\x{ff3a}\\x{ff41}-\\x{ff5a}\\x{10400}-\\x{1044f}\\x{104b0}-\\x{104d3}"             \
    "\\x{104d8}-\\x{104fb}\\x{10c80}-\\x{10cb2}\\x{10cc0}-\\x{10cf2}\\x{118a0}-\\x{118df}"         \
    "\\x{1e900}-\\x{1e943}"

static const km_family families[] = {
    {.names = " gpt-2 phi-2 jina-es jina-de gigachat jina-v2-es jina-v2-de jina-v1-en "
              "jina-v2-code roberta-bpe a.x-4.0 mellum modern-bert exaone4 mpt olmo jais "
              "trillion granite-docling ",
     .pattern = {KM_PATTERN_GPT2}},
    {.names = " llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 ",
     .pattern = {KM_PATTERN_LLAMA3("\\p{N}{1,3}")},
     .ignore_merges = true,
     .add_bos = true},
    {.names = " dbrx smaug-bpe chatglm-bpe chatglm4 glm4 ",
     .pattern = {KM_PATTERN_LLAMA3("\\p{N}{1,3}")}},
    {.names = " qwen2 ", .pattern = {KM_PATTERN_LLAMA3("\\p{N}")}, .nfc = true},
    {.names = " deepseek-r1-qwen stablelm2 hunyuan megrez kormo grok-2 solar-open ",
     .pattern = {KM_PATTERN_LLAMA3("\\p{N}")}},
    {.names = " qwen35 ",
     .pattern = {CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| "
                             "?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" SPACES},
     .nfc = true},
    {.names = " smollm starcoder refact command-r codeshell exaone minerva-7b mellum2 ",
     .pattern = {"\\p{N}", KM_PATTERN_GPT2}},
    {.names = " falcon ",
     .pattern = {"[\\p{P}\\$\\+<=>\\^~\\|`]+", KM_PATTERN_GPT2, "[0-9][0-9][0-9]"}},
    {.names = " default ",
     .pattern = {"[\\p{P}\\$\\+<=>\\^~\\|]+", KM_PATTERN_GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}},
    {.names = " deepseek-llm ",
     .pattern = {"[\\r\\n]", "\\s?[" DEEPSEEK_LETTERS "]+",
                 "\\s?[!-/:-~\\x{ff01}-\\x{ff0f}\\x{ff1a}-\\x{ff5e}\\x{2018}-\\x{201f}\\x{3000}-"
                 "\\x{3002}]+",
                 "\\s+$", CJK, "\\p{N}+"}},
    {.names = " deepseek-coder ",
     .pattern = {"[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", CJK, "\\p{N}"}},
    {.names = " deepseek-v3 hunyuan-dense joyai-llm ",
     .pattern = {"\\p{N}{1,3}", "[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}]+",
                 DEEPSEEK3}},
    {.names = " bloom poro-chat gpt3-finnish ", .pattern = {BLOOM}},
    {.names = " viking ", .pattern = {BLOOM, "\\p{N}"}},
    {.names = " tekken ",
     .pattern = {CASED("") "|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES},
     .ignore_merges = true,
     .add_bos = true},
    {.names = " gpt-4o llama4 kanana2 minimax-m2 ",
     .pattern = {CASED(CONTRACTION "?") "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES}},
    {.names = " superbpe ", .pattern = {"\\p{N}+", "(?=(\\d{3})+(?!\\d))"}},
    {.names = " bailingmoe bailingmoe2 llada-moe ",
     .pattern = {"'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}| "
                 "?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"}},
    {.names = " seed-coder ",
     .pattern = {CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1}| "
                             "?[^\\s\\p{L}\\p{N}\\r\\n]+|" SPACES}},
    {.names = " chameleon ",
     .pattern = {"<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", "([\\t\\n]|    |  )",
                 "\\p{N}", "[\\p{P}!-/:-@\\[-`{-~]", KM_PATTERN_GPT2}},
};
enum { N_FAMILIES = sizeof families / sizeof *families };

const km_family *km_family_find(const char *name) {
    size_t n = strlen(name);
    if (n == 0 || strchr(name, ' ')) return NULL;
    for (int i = 0; i < N_FAMILIES; i++)
        for (const char *at = families[i].names; (at = strstr(at, name)); at++)
            if (at[-1] == ' ' && at[n] == ' ') return &families[i];
    return NULL;
}

json_t *km_family_section(const km_family *f) {
    json_t *list = json_array();
    for (int i = 0; i < 7 && f->pattern[i]; i++)
        json_array_append_new(list, json_pack("{s:s, s:{s:s}, s:s, s:b}", "type", "Split",
                                              "pattern", "Regex", f->pattern[i], "behavior",
                                              "Isolated", "invert", 0));
    json_array_append_new(list,
                          json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space",
                                    0, "trim_offsets", 1, "use_regex", 0));
    return json_pack("{s:s, s:o}", "type", "Sequence", "pretokenizers", list);
}

const km_family *km_family_list(int *n) {
    *n = N_FAMILIES;
    return families;
}
