/* Formats: RFC 3339 for dates and times, RFC 3986 for URIs, RFC 1123 for host names, RFC 4291 for
 * IPv6, RFC 5321 for mail, RFC 6901 for pointers; the names that OpenAPI and pydantic add.
 *
 * Numbers of repetitions are bounded throughout: a model cannot lose itself in a string, and the
 * lengths that schemas write beside a format (a URI of at most 2083 characters) hold by themselves. */
#include "text/json_schema_parts.h"
#include <stddef.h>
#include <string.h>

/* ---- Dates and times ---- */

/* Every day there is from year 1 to 9999, the 29th of February in leap years alone. */
#define YEAR "([1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
#define LEAP_YEAR "([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)"
#define DATE                                                                                       \
    "(" YEAR "-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|"      \
    "02-(0[1-9]|1[0-9]|2[0-8]))|" LEAP_YEAR "-02-29)"
/* Without leap seconds, which come as they are announced. */
#define TIME                                                                                       \
    "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
#define SOME "[0-9]{1,5}"
#define DURATION_TIME "T(" SOME "H(" SOME "M(" SOME "S)?)?|" SOME "M(" SOME "S)?|" SOME "S)"
#define DURATION                                                                                   \
    "P((" SOME "D|" SOME "M(" SOME "D)?|" SOME "Y(" SOME "M(" SOME "D)?)?)"                        \
    "(" DURATION_TIME ")?|" DURATION_TIME "|" SOME "W)"

/* ---- Names and addresses ---- */

/* No hyphen at an end and no two in a row, which are kept for names in other scripts; the last
 * label begins with a letter, or the name would be an IPv4 address. */
#define LABEL "[A-Za-z0-9](-?[A-Za-z0-9]){0,30}"
#define LAST_LABEL "[A-Za-z](-?[A-Za-z0-9]){0,30}"
#define HOST "(" LABEL "\\.){0,3}" LAST_LABEL
#define ATOM "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]"
#define EMAIL "(" ATOM "{1,15}\\.){0,3}" ATOM "{1,16}@(" LABEL "\\.){1,3}[A-Za-z]{2,24}"
#define OCTET "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
#define IPV4 "(" OCTET "\\.){3}" OCTET
#define H "[0-9a-fA-F]{1,4}"
#define LAST_32 "(" H ":" H "|" IPV4 ")"
#define IPV6                                                                                       \
    "((" H ":){6}" LAST_32 "|::(" H ":){5}" LAST_32 "|(" H ")?::(" H ":){4}" LAST_32 "|"           \
    "((" H ":){0,1}" H ")?::(" H ":){3}" LAST_32 "|((" H ":){0,2}" H ")?::(" H ":){2}" LAST_32 "|" \
    "((" H ":){0,3}" H ")?::" H ":" LAST_32 "|((" H ":){0,4}" H ")?::" LAST_32 "|"                 \
    "((" H ":){0,5}" H ")?::" H "|((" H ":){0,6}" H ")?::)"
#define BITS_32 "/([12]?[0-9]|3[0-2])"
#define BITS_128 "/(1[01][0-9]|12[0-8]|[1-9]?[0-9])"

/* ---- URIs ---- */

#define PCT "%[0-9A-Fa-f]{2}"
#define PCHAR "([A-Za-z0-9._~!$&'()*+,;=:@-]|" PCT ")"
#define PATH_CHAR "([A-Za-z0-9._~!$&'()*+,;=:@/-]|" PCT ")"
#define QUERY_CHAR "([A-Za-z0-9._~!$&'()*+,;=:@/?-]|" PCT ")"
#define AUTHORITY                                                                                  \
    "([A-Za-z0-9._~!$&'()*+,;=:-]{1,60}@)?(" HOST "|" IPV4 "|\\[" IPV6 "\\])(:[0-9]{1,4})?"
#define TAIL "(\\?" QUERY_CHAR "{0,200})?(#" QUERY_CHAR "{0,100})?"
#define SCHEME "[A-Za-z][A-Za-z0-9+.-]{0,15}:"
#define ROOTED "//" AUTHORITY "(/" PATH_CHAR "{0,200})?"
/* Only files have an empty host. */
#define FILE_URI "file:///" PCHAR PATH_CHAR "{0,200}"
#define URI "(" FILE_URI "|" SCHEME "(" ROOTED "|/?" PCHAR PATH_CHAR "{0,200}))" TAIL
/* A path that begins without a slash has no colon before the first one, or it would be a scheme. */
#define PLAIN_CHAR "([A-Za-z0-9._~!$&'()*+,;=@-]|" PCT ")"
#define URI_REFERENCE                                                                              \
    "(" FILE_URI "|" SCHEME "(" ROOTED "|/?" PCHAR PATH_CHAR "{0,200})|" ROOTED                    \
    "|/(" PCHAR PATH_CHAR "{0,200})?|" PLAIN_CHAR "{1,60}(/" PATH_CHAR "{0,200})?)" TAIL
#define VARIABLE "([A-Za-z0-9_]|" PCT ")(\\.?([A-Za-z0-9_]|" PCT ")){0,30}(:[1-9][0-9]{0,3}|\\*)?"
#define URI_TEMPLATE                                                                               \
    "([A-Za-z0-9._~!#$&()*+,/:;=?@-]|" PCT "|\\{[+#./;?&]?" VARIABLE "(," VARIABLE ")*\\})*"

/* ---- The rest ---- */

#define HEX "[0-9a-fA-F]"
#define UUID(version, variant)                                                                     \
    "^" HEX "{8}-" HEX "{4}-" version HEX "{3}-" variant HEX "{3}-" HEX "{12}$"
#define UUID_OF(n) UUID(#n, "[89abAB]")
/* With the bits beyond the last byte zero, as encoders write them. */
#define BASE64(letter) "^(" letter "{4})*(" letter "[AQgw]==|" letter "{2}[AEIMQUYcgkosw048]=)?$"
#define POINTER "(/([^/~]|~[01])*)*"

static const struct {
    const char *name, *pattern; /* NULL: said of strings that may be anything */
} strings[] = {
    {"date", "^" DATE "$"},
    {"time", "^" TIME "$"},
    {"date-time", "^" DATE "T" TIME "$"},
    {"duration", "^" DURATION "$"},
    {"email", "^" EMAIL "$"},
    {"idn-email", "^" EMAIL "$"},
    {"name-email", "^" EMAIL "$"},
    {"hostname", "^" HOST "$"},
    {"idn-hostname", "^" HOST "$"},
    {"ipv4", "^" IPV4 "$"},
    {"ipv6", "^" IPV6 "$"},
    {"ipv4interface", "^" IPV4 "(" BITS_32 ")?$"},
    {"ipv6interface", "^" IPV6 "(" BITS_128 ")?$"},
    {"ipvanyaddress", "^(" IPV4 "|" IPV6 ")$"},
    {"ipvanyinterface", "^(" IPV4 "(" BITS_32 ")?|" IPV6 "(" BITS_128 ")?)$"},
    {"uri", "^" URI "$"},
    {"iri", "^" URI "$"},
    {"uri-reference", "^" URI_REFERENCE "$"},
    {"iri-reference", "^" URI_REFERENCE "$"},
    {"uri-template", "^" URI_TEMPLATE "$"},
    {"uuid", UUID(HEX, HEX)},
    {"uuid1", UUID_OF(1)},
    {"uuid3", UUID_OF(3)},
    {"uuid4", UUID_OF(4)},
    {"uuid5", UUID_OF(5)},
    {"uuid6", UUID_OF(6)},
    {"uuid7", UUID_OF(7)},
    {"uuid8", UUID_OF(8)},
    {"json-pointer", "^" POINTER "$"},
    {"relative-json-pointer", "^(0|[1-9][0-9]{0,8})(#|" POINTER ")$"},
    {"byte", BASE64("[A-Za-z0-9+/]")},
    {"base64", BASE64("[A-Za-z0-9+/]")},
    {"base64url", BASE64("[A-Za-z0-9_-]")},
    {"binary", NULL},
    {"password", NULL},
    {"path", NULL},
};

static const struct {
    const char *name;
    double lo, hi;
} integers[] = {
    {"int8", -128, 127},
    {"int16", -32768, 32767},
    {"int32", -2147483648.0, 2147483647.0},
    {"int64", -9223372036854775808.0, 9223372036854775807.0},
    {"int", -9223372036854775808.0, 9223372036854775807.0},
    {"uint8", 0, 255},
    {"uint16", 0, 65535},
    {"uint32", 0, 4294967295.0},
    {"uint64", 0, 18446744073709551615.0},
    {"uint", 0, 18446744073709551615.0},
};

const char *km_schema_format_pattern(const char *name) {
    for (size_t i = 0; i < sizeof strings / sizeof *strings; i++)
        if (strcmp(strings[i].name, name) == 0) return strings[i].pattern;
    return NULL;
}

bool km_schema_format_bounds(const char *name, double *lo, double *hi) {
    for (size_t i = 0; i < sizeof integers / sizeof *integers; i++)
        if (strcmp(integers[i].name, name) == 0) {
            *lo = integers[i].lo;
            *hi = integers[i].hi;
            return true;
        }
    return false;
}

bool km_schema_format_known(const char *name) {
    double lo, hi;
    for (size_t i = 0; i < sizeof strings / sizeof *strings; i++)
        if (strcmp(strings[i].name, name) == 0) return true;
    /* what the grammar's numbers are anyway */
    return km_schema_format_bounds(name, &lo, &hi) || strcmp(name, "float") == 0 ||
           strcmp(name, "double") == 0;
}
