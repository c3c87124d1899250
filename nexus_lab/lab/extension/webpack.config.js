// Added to what the builder sets: TypeScript goes in as it is, and `npm run check` holds its types.
module.exports = {
  // Ids by order, since the others hash absolute paths: a rebuild elsewhere must give the same bytes.
  optimization: { moduleIds: "natural", chunkIds: "natural" },
  resolve: { extensions: [".ts", ".tsx", ".js", ".json"] },
  module: {
    rules: [
      {
        test: /\.tsx?$/,
        type: "javascript/auto",
        loader: "builtin:swc-loader",
        options: {
          jsc: {
            target: "es2022",
            parser: { syntax: "typescript", tsx: true },
            transform: { react: { runtime: "classic" } },
          },
        },
      },
    ],
  },
};
