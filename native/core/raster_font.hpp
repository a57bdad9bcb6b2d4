// The letters of pictures: strokes of a pen with a round tip.
#pragma once

#include <cstdint>

namespace fugu {

// Each letter is a string of strokes with a space between them; a stroke is a string of points, two
// characters each. The first is x from '0' on; the second is y, from 'b' (the top of capitals) over
// 'f' (the top of small letters) to 'n' (the line they stand on) and below. Where y is a capital
// the pen does not pass through the point but is drawn toward it: it controls a quadratic curve, as
// in TrueType, and two such points in a row have a point of the stroke midway.
inline const char* strokes_of(unsigned char letter) {
    static const char* const kStrokes[] = {
        "",                                                  // space
        "0b0j 0n0n",                                         // !
        "0b0e 3b3e",                                         // "
        "3b2n 6b5n 0f8f 0j8j",                               // #
        "8e8B4b0B0e0H4h8H8k8N4n0N0k 4a4o",                   // $
        "2b4B4d4F2f0F0d0B2b 7j9J9l9N7n5N5l5J7j 8b1n",        // %
        "8n2e2B4b6B6e6G3h0I0k0N3n7N8i",                      // &
        "0b0e",                                              // '
        "3a0D0h0L3o",                                        // (
        "0a3D3h3L0o",                                        // )
        "3c3i 0d6h 0h6d",                                    // *
        "3e3k 0h6h",                                         // +
        "1n1n 1n0p",                                         // ,
        "0h5h",                                              // -
        "0n0n",                                              // .
        "6a0o",                                              // /
        "0h0B3b4b7B7h7N4n3n0N0h",                            // 0
        "1e4b4n 1n7n",                                       // 1
        "0e0B3b4b7B7e7G5i0n7n",                              // 2
        "0d0B3b4b7B7e7H4h2h 4h7H7k7N4n3n0N0l",               // 3
        "5n5b0k7k",                                          // 4
        "7b1b0h1F4f7F7j7N4n3n0N0l",                          // 5
        "6b0D0j0N3n4n7N7j7F4f3f0F0j",                        // 6
        "0b7b2n",                                            // 7
        "3h4h7H7e7B4b3b0B0e0H3h 3h0H0k0N3n4n7N7k7H4h",       // 8
        "1n7L7f7B4b3b0B0f0J3j4j7J7f",                        // 9
        "0g0g 0n0n",                                         // :
        "1g1g 1n1n 1n0p",                                    // ;
        "6d0h6l",                                            // <
        "0f6f 0j6j",                                         // =
        "0d6h0l",                                            // >
        "0e0B3b6B6e6G4h3I3j 3n3n",                           // ?
        "6h6E4e2E2h2K4k6K6h 6e6h6K7k9K9h9B5b4b0B0h0N5n7N8m", // @
        "0n4b8n 1k7k",                                       // A
        "0h4h8H8k8N4n0n0b4b7B7e7H4h",                        // B
        "8e8B5b4b0B0h0N4n5n8N8k",                            // C
        "0b0n4n8N8h8B4b0b",                                  // D
        "7b0b0n7n 0h6h",                                     // E
        "7b0b0n 0h6h",                                       // F
        "8e8B5b4b0B0h0N4n5n8N8j8h5h",                        // G
        "0b0n 8b8n 0h8h",                                    // H
        "0b4b 2b2n 0n4n",                                    // I
        "6b6k6N3n0N0k",                                      // J
        "0b0n 8b0j 3g8n",                                    // K
        "0b0n7n",                                            // L
        "0n0b5j:b:n",                                        // M
        "0n0b8n8b",                                          // N
        "0h0B4b5b9B9h9N5n4n0N0h",                            // O
        "0n0b4b8B8e8I4i0i",                                  // P
        "0h0B4b5b9B9h9N5n4n0N0h 6k9o",                       // Q
        "0n0b4b8B8e8I4i0i 4i8n",                             // R
        "8e8B4b0B0e0H4h8H8k8N4n0N0k",                        // S
        "0b8b 4b4n",                                         // T
        "0b0i0N4n8N8i8b",                                    // U
        "0b4n8b",                                            // V
        "0b3n5f7n:b",                                        // W
        "0b8n 8b0n",                                         // X
        "0b4h8b 4h4n",                                       // Y
        "0b8b0n8n",                                          // Z
        "3a0a0o3o",                                          // [
        "0a6o",                                              // backslash
        "0a3a3o0o",                                          // ]
        "0f3b6f",                                            // ^
        "0p7p",                                              // _
        "0b2d",                                              // `
        "7j7F4f3f0F0j0N3n4n7N7j 7f7n",                       // a
        "0b0n 0j0F3f4f7F7j7N4n3n0N0j",                       // b
        "6h6F3f0F0j0N3n6N6l",                                // c
        "7b7n 7j7F4f3f0F0j0N3n4n7N7j",                       // d
        "0j7j7F4f3f0F0j0N3n4n6N7l",                          // e
        "5b2B2e2n 0f4f",                                     // f
        "7j7F4f3f0F0j0N3n4n7N7j 7f7n7Q4q3q1Q0p",             // g
        "0b0n 0i0F3f6F6i6n",                                 // h
        "0f0n 0c0c",                                         // i
        "2f2n2Q0q 2c2c",                                     // j
        "0b0n 6f0l 2j6n",                                    // k
        "0b0l0N2n",                                          // l
        "0f0n 0i0F3f5F5i5n 5i5F8f:F:i:n",                    // m
        "0f0n 0i0F3f6F6i6n",                                 // n
        "0j0F3f4f7F7j7N4n3n0N0j",                            // o
        "0f0q 0j0F3f4f7F7j7N4n3n0N0j",                       // p
        "7f7q 7j7F4f3f0F0j0N3n4n7N7j",                       // q
        "0f0n 0j0F4f",                                       // r
        "6g6F3f0F0h0J3j6J6l6N3n0N0m",                        // s
        "2c2k2N5n 0f5f",                                     // t
        "0f0k0N3n6N6k 6f6n",                                 // u
        "0f3n6f",                                            // v
        "0f3n5h7n:f",                                        // w
        "0f6n 6f0n",                                         // x
        "0f3n 6f2q",                                         // y
        "0f6f0n6n",                                          // z
        "4a2A2c2f2H0h2H2j2m2O4o",                            // {
        "0a0o",                                              // |
        "0a2A2c2f2H4h2H2j2m2O0o",                            // }
        "0i0G2g3G4h5I6i8I8g",                                // ~
    };
    return letter < 32 || letter > 126 ? kStrokes['?' - 32] : kStrokes[letter - 32];
}

// Measures, in steps of the grid that the points stand on. The pen's lowest point lies just within
// the height; the middle of capitals is the middle of the text.
constexpr float kTextHeight = 20.0f, kTextMiddle = 6.0f;
constexpr float kTextAspect = 0.85f; // width of a step in x, as a share of one in y
constexpr float kTextGap = 3.6f, kTextSpace = 5.0f;
constexpr float kTextPen = 1.6f;
constexpr float kTextDot = 2.1f; // of the pen where it only touches

// How far the next letter begins, in steps of y.
inline float advance_of(unsigned char letter) {
    char widest = 0;
    for (const char* at = strokes_of(letter); *at; at += *at == ' ' ? 1 : 2)
        widest = *at > widest ? *at : widest;
    return widest ? static_cast<float>(widest - '0') * kTextAspect + kTextGap : kTextSpace;
}

} // namespace fugu
